#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/commands.h"
#include "client/cli/flags.h"
#include "client/cli/help.h"
#include "client/format.h"
#include "client/input_file.h"
#include "client/number_list.h"
#include "client/utf8.h"

namespace ripplekv {
namespace {

struct TokenizeFlags {
  PromptFlags prompt;
  bool tokens = false;
};

void AddTokenizeFlags(CLI::App& app, TokenizeFlags& flags) {
  flags.prompt.Add(app, /*with_token_ids=*/false);
  app.add_flag("--tokens", flags.tokens, "A line a token, with its bytes, instead of the ids alone")
      ->group("Output");
}

int RunTokenize(const TokenizeFlags& flags, Cli& cli) {
  absl::StatusOr<Prompt> prompt = flags.prompt.Read();
  if (!prompt.ok()) return cli.UsageError(prompt.status());
  v1::TokenizeRequest request;
  if (absl::Status wrong = SetPrompt(*std::move(prompt), request); !wrong.ok()) {
    return cli.UsageError(wrong);
  }
  const absl::StatusOr<v1::TokenizeResponse> response =
      cli.MakeClient().Tokenize(request, cli.Options());
  if (!response.ok()) return cli.CallFailed(response.status());
  if (cli.json) {
    cli.WriteJson(*response);
    return kExitOk;
  }
  std::string text;
  if (flags.tokens) {
    for (int i = 0; i < response->token_ids_size(); ++i) {
      absl::StrAppendFormat(&text, "%8d  '%s'\n", response->token_ids(i),
                            i < response->tokens_size() ? Escaped(response->tokens(i)) : "");
    }
  } else {
    text = absl::StrCat(absl::StrJoin(response->token_ids(), " "), "\n");
  }
  cli.Write(text);
  if (cli.err.interactive) {
    cli.WriteSide(cli.err.Dim(absl::StrCat(FormatCount(response->token_ids_size()), " tokens\n")));
  }
  return kExitOk;
}

struct DetokenizeFlags {
  std::vector<std::string> ids;
  std::string token_ids;
  bool skip_special_tokens = false;
};

void AddDetokenizeFlags(CLI::App& app, DetokenizeFlags& flags) {
  app.add_option("ids", flags.ids, "Token ids")->type_name("ID")->check(Decimal());
  app.add_option("--token-ids", flags.token_ids,
                 "A file of them, between spaces or commas or as a JSON list; - is standard input")
      ->type_name("FILE");
  app.add_flag("--skip-special-tokens", flags.skip_special_tokens,
               "Leave out the text of special tokens");
}

int RunDetokenize(const DetokenizeFlags& flags, Cli& cli) {
  if (flags.ids.empty() == flags.token_ids.empty()) {
    return cli.UsageError(absl::InvalidArgumentError(
        "give token ids as arguments, or a file of them with --token-ids"));
  }
  absl::StatusOr<std::string> list = absl::StrJoin(flags.ids, " ");
  if (!flags.token_ids.empty()) list = ReadBytes(flags.token_ids);
  if (!list.ok()) return cli.UsageError(list.status());
  const absl::StatusOr<std::vector<int32_t>> ids = ParseTokenIds(*list);
  if (!ids.ok()) return cli.UsageError(ids.status());
  v1::DetokenizeRequest request;
  request.mutable_token_ids()->Assign(ids->begin(), ids->end());
  request.set_skip_special_tokens(flags.skip_special_tokens);
  const absl::StatusOr<v1::DetokenizeResponse> response =
      cli.MakeClient().Detokenize(request, cli.Options());
  if (!response.ok()) return cli.CallFailed(response.status());
  if (cli.json) {
    cli.WriteJson(*response);
  } else if (cli.out.interactive) {
    cli.Write(absl::StrCat(WithoutControls(response->text()), "\n"));
  } else {
    cli.Write(response->raw());  // the exact bytes, and no other
  }
  return kExitOk;
}

}  // namespace

void AddTokenize(CLI::App& app, Cli& cli) {
  AddCommand<TokenizeFlags>(app, cli, "tokenize", "The token ids of a prompt",
                            "  ripplekv tokenize --raw -p \"Hello world\" --tokens\n"
                            "  ripplekv tokenize -f essay.txt > ids.txt\n",
                            AddTokenizeFlags, RunTokenize);
}

void AddDetokenize(CLI::App& app, Cli& cli) {
  AddCommand<DetokenizeFlags>(app, cli, "detokenize", "The text of token ids",
                              "  ripplekv detokenize 19556 905\n"
                              "  ripplekv detokenize --token-ids ids.txt --skip-special-tokens\n",
                              AddDetokenizeFlags, RunDetokenize);
}

}  // namespace ripplekv
