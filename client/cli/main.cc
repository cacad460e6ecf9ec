// ripplekv: generates text, calibrates and inspects a RippleKV server from the command line.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/commands.h"
#include "client/cli/help.h"
#include "client/cli/interrupt.h"
#include "client/config_file.h"
#include "client/unknown_argument.h"

namespace ripplekv {
namespace {

constexpr int kMaxHelpColumns = 100;

// "--prompt is given 2 times: ..." of an option of `app` or of its command; else empty.
std::string GivenTooOften(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const size_t times = option->results().size();
    if (option->get_multi_option_policy() == CLI::MultiOptionPolicy::Throw &&
        option->get_items_expected_max() == 1 && times > 1) {
      return option->get_name() + " is given " + std::to_string(times) +
             " times: must be given once";
    }
  }
  for (const CLI::App* command : app.get_subcommands()) {
    if (std::string found = GivenTooOften(*command); !found.empty()) return found;
  }
  return "";
}

// The options of `app` and of its commands that were named, or the commands where none was.
void CollectNames(const CLI::App& app, std::vector<std::string>& names) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const CLI::App* command : app.get_subcommands()) CollectNames(*command, names);
}

std::string DescribeUnexpected(const CLI::App& app, const std::vector<std::string>& unexpected) {
  const bool option = unexpected.front().size() > 1 && unexpected.front()[0] == '-';
  if (!option && app.get_subcommands().empty()) {
    std::vector<std::string> commands;
    for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
      commands.push_back(command->get_name());
    }
    const std::string nearest = NearestName(unexpected.front(), commands);
    return "there is no command '" + unexpected.front() + "'" +
           (nearest.empty() ? "" : "; did you mean " + nearest + "?");
  }
  std::vector<std::string> names;
  CollectNames(app, names);
  return DescribeUnknownArgument(unexpected, names);
}

// "context needs a command: create, list, ..." of the command that was named, or of the program.
std::string DescribeMissingCommand(const CLI::App& app) {
  const CLI::App* named = &app;
  while (!named->get_subcommands().empty()) named = named->get_subcommands().front();
  std::vector<std::string> commands;
  for (const CLI::App* command : named->get_subcommands([](const CLI::App*) { return true; })) {
    commands.push_back(command->get_name());
  }
  return absl::StrCat(named->get_name(), " needs a command: ", absl::StrJoin(commands, ", "));
}

// Whole numbers of `app` and of its commands are decimal.
void CheckNumbers(CLI::App& app) {
  for (CLI::Option* option : app.get_options([](const CLI::Option*) { return true; })) {
    const std::string type = option->get_type_name();
    if (type == "INT" || type == "UINT" || type == "N") option->check(Decimal());
  }
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) {
    CheckNumbers(*command);
  }
}

int Main(int argc, char** argv) {
  std::setlocale(LC_CTYPE, "");
  setenv("GRPC_VERBOSITY", "NONE", 0);  // what fails is told by status
  // Whoever reads our output may leave: end without a word, whatever the parent made of the signal.
  std::signal(SIGPIPE, SIG_DFL);
  static Cli cli;  // the thread that watches for interrupts uses it until the process ends
  cli.out = DetectTerminal(STDOUT_FILENO);
  cli.err = DetectTerminal(STDERR_FILENO);
  WatchInterrupts(cli.canceller);

  CLI::App app(
      "The client of RippleKV, an inference server that measures how much each layer's KV cache\n"
      "matters and sizes compressed per-layer caches by it.\n",
      "ripplekv");
  app.formatter(std::make_shared<HelpFormatter>(std::min(cli.out.width, kMaxHelpColumns)));
  app.require_subcommand(1);
  app.set_version_flag("--version", "ripplekv " RIPPLEKV_VERSION);
  app.footer(
      "Examples:\n"
      "  ripplekv health --wait 60\n"
      "  ripplekv generate --document report.txt --question \"What was decided?\"\n"
      "  ripplekv --server 10.0.0.7:50051 chat --retention 0.1\n"
      "  ripplekv calibrate && ripplekv profile && ripplekv plan --prompt-tokens 4096\n"
      "  ripplekv COMMAND --help\n"
      "\n"
      "Exit codes: 0 done, 1 the call failed, 2 wrong arguments or unreadable input, 130 "
      "interrupted.\n"
      "NO_COLOR switches styles off.");
  const std::string everywhere = "Options of every command";
  // Not RIPPLEKV_CONFIG: where both run, as in the image, that is the server's.
  const std::shared_ptr<ConfigFile> file = ConfigFile::AddTo(app, "RIPPLEKV_CLIENT_CONFIG");
  app.get_config_ptr()
      ->description(
          "TOML file of the options of every command: lines such as server = \"10.0.0.7:50051\" or "
          "tls-ca = \"ca.crt\", named as the flags; flags and variables win")
      ->group(everywhere);
  app.add_option("-s,--server", cli.server, "Where the server listens")
      ->envname("RIPPLEKV_SERVER")
      ->type_name("HOST:PORT")
      ->capture_default_str()
      ->group(everywhere);
  const std::string security = "Security, of every command";
  app.add_flag("--tls", cli.credential_files.tls,
               "Call by TLS; the server's certificate must be of a CA that this system trusts")
      ->envname("RIPPLEKV_TLS")
      ->group(security);
  app.add_option("--tls-ca", cli.credential_files.ca, "The CAs to trust instead (PEM); means --tls")
      ->envname("RIPPLEKV_TLS_CA")
      ->type_name("FILE")
      ->group(security);
  app.add_option("--tls-certificate", cli.credential_files.certificate,
                 "This client's certificate (PEM), for a server that asks for one; means --tls")
      ->type_name("FILE")
      ->group(security);
  app.add_option("--tls-key", cli.credential_files.key, "Its key (PEM, without a passphrase)")
      ->type_name("FILE")
      ->group(security);
  app.add_option("--token-file", cli.credential_files.token_file,
                 "A file that holds the token to call with; or the token in RIPPLEKV_TOKEN")
      ->type_name("FILE")
      ->group(security);
  app.add_option("--timeout", cli.timeout_seconds, "Give up after this long")
      ->check(Seconds(/*may_be_zero=*/false))
      ->type_name("SECONDS")
      ->group(everywhere);
  app.add_option("--request-id", cli.request_id,
                 "Names the call in the server's log; without it the server makes one")
      ->check(RequestId())
      ->type_name("ID")
      ->configurable(false)  // of one call
      ->group(everywhere);
  app.add_flag(
         "--json", cli.json,
         "JSON for programs: one object a line, as the server's messages; errors too, on standard "
         "error")
      ->group(everywhere);
  AddGenerate(app, cli);
  AddChat(app, cli);
  AddScore(app, cli);
  AddContext(app, cli);
  AddCalibrate(app, cli);
  AddCalibrations(app, cli);
  AddProfile(app, cli);
  AddPlan(app, cli);
  AddModel(app, cli);
  AddHealth(app, cli);
  AddTokenize(app, cli);
  AddDetokenize(app, cli);
  CheckNumbers(app);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      app.exit(error, std::cout, std::cerr);  // --help, --version
      return kExitOk;
    }
    std::string problem = file->Describe(error);
    if (error.get_name() == "RequiredError" &&
        absl::StrContains(problem, "subcommand is required")) {
      problem = DescribeMissingCommand(app);
    }
    if (const std::vector<std::string> unexpected = app.remaining(/*recurse=*/true);
        !unexpected.empty()) {
      problem = DescribeUnexpected(app, unexpected);
    }
    if (error.get_name() == "ArgumentMismatch") {
      if (std::string often = GivenTooOften(app); !often.empty()) problem = std::move(often);
    }
    std::cerr << "ripplekv: " << problem
              << "\n  See ripplekv --help, or ripplekv COMMAND --help.\n";
    return kExitUsage;
  }
  const char* token = std::getenv("RIPPLEKV_TOKEN");
  if (file->Gave("token-file") && token != nullptr && *token != '\0') {
    cli.credential_files.token_file.clear();  // a variable wins
  }
  if (absl::Status wrong = CheckServerAddress(cli.server); !wrong.ok())
    return cli.UsageError(wrong);
  if (absl::Status wrong = cli.ReadCredentialFlags(); !wrong.ok()) return cli.UsageError(wrong);
  const int code = cli.command(cli);
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    std::perror("ripplekv: cannot write to standard output");
    return code == kExitOk ? kExitError : code;
  }
  return code;
}

}  // namespace
}  // namespace ripplekv

int main(int argc, char** argv) { return ripplekv::Main(argc, argv); }
