#include <algorithm>
#include <iostream>
#include <string>

#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/flags.h"
#include "client/generation_summary.h"
#include "client/utf8.h"

namespace ripplekv {
namespace {

constexpr char kHelp[] =
    "  /help   this list\n"
    "  /reset  forget the conversation\n"
    "  /quit   leave (so does Ctrl-D)\n"
    "  Ctrl-C  stop an answer; leave where none is being written\n"
    "  Everything else is said to the model; a line that ends with \\ goes on in the next one.\n";

struct ChatFlags {
  std::string system;
  SamplingFlags sampling;
  StoppingFlags stopping;
  KvFlags kv;
  ContextFlags context;
  bool stats = false;
};

void AddFlags(CLI::App& app, ChatFlags& flags) {
  app.add_option("--system", flags.system, "A system message that starts the conversation")
      ->type_name("TEXT")
      ->group("Conversation");
  app.add_flag("--stats", flags.stats,
               "Write a line about each answer to standard error although it is not a terminal")
      ->group("Conversation");
  flags.sampling.Add(app);
  flags.stopping.Add(app);
  flags.kv.Add(app, /*with_growth=*/true);
  flags.context.Add(app);
}

// A line, and those it goes on in. False at the end of the input.
bool ReadTurn(std::string& turn) {
  turn.clear();
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line.empty() || line.back() != '\\') {
      turn += line;
      return true;
    }
    line.back() = '\n';
    turn += line;
  }
  return !turn.empty();
}

class Chat {
 public:
  Chat(const ChatFlags& flags, Cli& cli)
      : flags_(flags), cli_(cli), client_(cli.MakeClient()), asks_(isatty(STDIN_FILENO) == 1) {}

  int Run() {
    for (const absl::Status& status :
         {flags_.sampling.Fill(*request_.mutable_sampling()),
          flags_.stopping.Fill(*request_.mutable_stopping()), flags_.kv.Fill(request_)}) {
      if (!status.ok()) return cli_.UsageError(status);
    }
    request_.set_context_id(flags_.context.id);
    Reset();
    if (asks_) cli_.WriteSide(cli_.err.Dim("Chat with the model; /help lists the commands.\n"));
    std::string turn;
    while (Ask(), ReadTurn(turn)) {
      const absl::string_view command = absl::StripAsciiWhitespace(turn);
      if (command.empty()) continue;
      if (command == "/quit") return kExitOk;
      if (command == "/help") {
        cli_.WriteSide(kHelp);
      } else if (command == "/reset") {
        Reset();
        if (asks_) cli_.WriteSide(cli_.err.Dim("The conversation starts anew.\n"));
      } else if (command.front() == '/') {
        cli_.WriteSide(absl::StrCat("There is no ", command, "; the commands are:\n", kHelp));
      } else if (FirstInvalidUtf8(turn) != turn.size()) {
        const int code = cli_.UsageError(absl::InvalidArgumentError(
            absl::StrCat("the line is not UTF-8 text: see its byte ", FirstInvalidUtf8(turn))));
        if (!asks_) return code;
      } else if (const int code = Say(turn); code != kExitOk && !asks_) {
        return code;
      }
    }
    if (asks_) cli_.WriteSide("\n");
    return kExitOk;
  }

 private:
  void Ask() {
    if (asks_) cli_.WriteSide(cli_.err.Bold("> "));
  }

  void Reset() {
    request_.mutable_chat()->clear_messages();
    if (!flags_.system.empty()) AddMessage(v1::ROLE_SYSTEM, flags_.system);
  }

  void AddMessage(v1::Role role, std::string content) {
    v1::ChatMessage& message = *request_.mutable_chat()->add_messages();
    message.set_role(role);
    message.set_content(std::move(content));
  }

  int Say(const std::string& turn) {
    AddMessage(v1::ROLE_USER, turn);
    std::string answer;
    const absl::StatusOr<v1::GenerateComplete> complete =
        client_.Generate(request_, cli_.Options(), [&](const v1::GenerateResponse& response) {
          answer += response.chunk().text();
          if (cli_.json) return cli_.WriteJson(response);
          cli_.Write(cli_.out.interactive ? WithoutControls(response.chunk().text())
                                          : response.chunk().text());
        });
    if (!cli_.json && !answer.empty() && answer.back() != '\n') cli_.Write("\n");
    if (!complete.ok()) {
      // The turn did not take place: it can be said again.
      request_.mutable_chat()->mutable_messages()->RemoveLast();
      const int code = cli_.CallFailed(complete.status());
      cli_.canceller.Reset();
      return code;
    }
    AddMessage(v1::ROLE_ASSISTANT, answer);
    if (!cli_.json && (flags_.stats || cli_.err.interactive)) {
      cli_.WriteSide(absl::StrCat(cli_.err.Dim(RenderShortSummary(*complete, cli_.err)), "\n"));
    }
    return kExitOk;
  }

  const ChatFlags& flags_;
  Cli& cli_;
  Client client_;
  const bool asks_;  // somebody types
  v1::GenerateRequest request_;
};

int Run(const ChatFlags& flags, Cli& cli) { return Chat(flags, cli).Run(); }

}  // namespace

void AddChat(CLI::App& app, Cli& cli) {
  AddCommand<ChatFlags>(app, cli, "chat",
                        "Talk to the model line by line, keeping the conversation",
                        "  ripplekv chat --temperature 0.7\n"
                        "  ripplekv chat --system \"Answer in one sentence.\" --retention 0.3\n"
                        "  printf 'Hello\\nWhat did I say?\\n' | ripplekv chat\n",
                        AddFlags, Run);
}

}  // namespace ripplekv
