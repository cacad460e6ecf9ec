#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/commands.h"
#include "client/cli/flags.h"
#include "client/input_file.h"
#include "client/score_view.h"
#include "client/utf8.h"

namespace ripplekv {
namespace {

struct ScoreFlags {
  PromptFlags prompt;
  ContextFlags context;
  KvFlags kv;
  std::vector<std::string> continuations;
  std::string continuations_file;
  bool reference = false;
  bool stats = false;
};

void AddFlags(CLI::App& app, ScoreFlags& flags) {
  const std::string group = "Continuations (1 to 256)";
  AddRepeated(app, "-c,--continuation", flags.continuations,
              "A text to score after the prompt, as it is (mind a leading space); once for each")
      ->type_name("TEXT")
      ->group(group);
  app.add_option("--continuations", flags.continuations_file,
                 "A file with one in each line that is not empty; - is standard input")
      ->type_name("FILE")
      ->group(group);
  flags.prompt.Add(app, /*with_token_ids=*/true);
  flags.context.Add(app);
  flags.kv.Add(app, /*with_growth=*/false);
  app.add_flag("--reference", flags.reference,
               "Run the full cache beside the compressed one (its memory, and a second pass): tell "
               "each continuation's mean KL and how often the most probable token is the same")
      ->group("Output");
  app.add_flag("--stats", flags.stats,
               "Write the summary (tokens, cache, speed) to standard error although it is not a "
               "terminal")
      ->group("Output");
}

absl::StatusOr<std::vector<std::string>> Continuations(const ScoreFlags& flags) {
  std::vector<std::string> texts;
  for (const std::string& text : flags.continuations) {
    const size_t invalid = FirstInvalidUtf8(text);
    if (invalid != text.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--continuation is not UTF-8 text: see its byte ", invalid));
    }
    if (text.empty()) return absl::InvalidArgumentError("--continuation is empty");
    texts.push_back(text);
  }
  if (!flags.continuations_file.empty()) {
    const PromptFlags& prompt = flags.prompt;
    if (flags.continuations_file == "-" &&
        (prompt.prompt_file == "-" || prompt.document == "-" || prompt.token_ids == "-")) {
      return absl::InvalidArgumentError(
          "standard input can be read once: prompt and --continuations cannot both be -");
    }
    absl::StatusOr<std::string> text = ReadText(flags.continuations_file);
    if (!text.ok()) return text.status();
    for (absl::string_view line : absl::StrSplit(*text, '\n')) {
      if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
      if (!line.empty()) texts.emplace_back(line);
    }
  }
  if (texts.empty()) {
    return absl::InvalidArgumentError(
        "there is no continuation: give --continuation TEXT or --continuations FILE");
  }
  return texts;
}

absl::StatusOr<v1::ScoreRequest> MakeRequest(const ScoreFlags& flags) {
  v1::ScoreRequest request;
  absl::StatusOr<std::vector<std::string>> texts = Continuations(flags);
  if (!texts.ok()) return texts.status();
  for (std::string& text : *texts) request.add_continuations()->set_text(std::move(text));
  // Without one: after the context, or the model's BOS token.
  if (flags.prompt.given()) {
    absl::StatusOr<Prompt> prompt = flags.prompt.Read();
    if (!prompt.ok()) return prompt.status();
    SetPrompt(*std::move(prompt), request);
  }
  request.set_context_id(flags.context.id);
  request.set_reference(flags.reference);
  if (absl::Status wrong = flags.kv.Fill(request); !wrong.ok()) return wrong;
  return request;
}

int Run(const ScoreFlags& flags, Cli& cli) {
  const absl::StatusOr<v1::ScoreRequest> request = MakeRequest(flags);
  if (!request.ok()) return cli.UsageError(request.status());
  const absl::StatusOr<v1::ScoreResponse> response =
      cli.MakeClient().Score(*request, cli.Options());
  if (!response.ok()) return cli.CallFailed(response.status());
  if (cli.json) {
    cli.WriteJson(*response);
    return kExitOk;
  }
  cli.Write(RenderScores(*response, cli.out));
  if (flags.stats || cli.err.interactive) {
    cli.WriteSide(absl::StrCat("\n", RenderScoreSummary(*response, cli.err)));
  }
  return kExitOk;
}

}  // namespace

void AddScore(CLI::App& app, Cli& cli) {
  AddCommand<ScoreFlags>(
      app, cli, "score", "Tell how probable the model finds given continuations of a prompt",
      "  ripplekv score --raw -p \"The capital of France is\" -c \" Paris\" -c \" Rome\"\n"
      "  ripplekv score -d report.txt -q \"Was the bridge built?\" -c Yes -c No --retention 0.1\n"
      "  ripplekv score --context ID --raw -p \"Answer:\" --continuations answers.txt\n"
      "  ripplekv score -f report.txt -c \" In short,\" --retention 0.1 --reference\n"
      "  ripplekv score -c \"Once upon a time\"\n",
      AddFlags, Run);
}

}  // namespace ripplekv
