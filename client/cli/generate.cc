#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/flags.h"
#include "client/generation_summary.h"
#include "client/utf8.h"

namespace ripplekv {
namespace {

struct GenerateFlags {
  PromptFlags prompt;
  SamplingFlags sampling;
  StoppingFlags stopping;
  KvFlags kv;
  ContextFlags context;
  std::optional<int32_t> logprobs;
  bool next_token_kl = false;
  bool stats = false;
};

void AddFlags(CLI::App& app, GenerateFlags& flags) {
  flags.prompt.Add(app, /*with_token_ids=*/true);
  flags.sampling.Add(app);
  flags.stopping.Add(app);
  flags.kv.Add(app, /*with_growth=*/true);
  flags.context.Add(app);
  app.add_option(
         "--logprobs", flags.logprobs,
         "Log-probability of each output token, and the N most probable ones at its place, 0 "
         "to 20; a table after the text, or in --json")
      ->type_name("N")
      ->group("Output");
  app.add_flag("--next-token-kl", flags.next_token_kl,
               "Measure how far the compressed cache moves the first token's distribution (KL in "
               "nats)")
      ->group("Output");
  app.add_flag("--stats", flags.stats,
               "Write the summary (tokens, cache, speed) to standard error although it is not a "
               "terminal")
      ->group("Output");
}

absl::StatusOr<v1::GenerateRequest> MakeRequest(const GenerateFlags& flags) {
  absl::StatusOr<Prompt> prompt = flags.prompt.Read();
  if (!prompt.ok()) return prompt.status();
  v1::GenerateRequest request;
  SetPrompt(*std::move(prompt), request);
  request.set_context_id(flags.context.id);
  for (const absl::Status& status :
       {flags.sampling.Fill(*request.mutable_sampling()),
        flags.stopping.Fill(*request.mutable_stopping()), flags.kv.Fill(request)}) {
    if (!status.ok()) return status;
  }
  if (flags.logprobs) request.mutable_output()->set_logprobs(*flags.logprobs);
  request.mutable_output()->set_next_token_kl(flags.next_token_kl);
  return request;
}

int Run(const GenerateFlags& flags, Cli& cli) {
  const absl::StatusOr<v1::GenerateRequest> request = MakeRequest(flags);
  if (!request.ok()) return cli.UsageError(request.status());

  google::protobuf::RepeatedPtrField<v1::TokenLogprob> logprobs;
  char last = '\n';
  const absl::StatusOr<v1::GenerateComplete> complete =
      cli.MakeClient().Generate(*request, cli.Options(), [&](const v1::GenerateResponse& response) {
        if (cli.json) return cli.WriteJson(response);
        const v1::GenerateChunk& chunk = response.chunk();
        logprobs.MergeFrom(chunk.logprobs());
        if (chunk.text().empty()) return;
        cli.Write(cli.out.interactive ? WithoutControls(chunk.text()) : chunk.text());
        last = chunk.text().back();
      });
  if (last != '\n') cli.Write("\n");
  if (!complete.ok()) return cli.CallFailed(complete.status());
  if (cli.json) return kExitOk;
  if (flags.logprobs) cli.WriteSide(absl::StrCat("\n", RenderLogprobs(logprobs)));
  if (flags.stats || cli.err.interactive) {
    cli.WriteSide(absl::StrCat("\n", RenderSummary(*complete, cli.err)));
  }
  return kExitOk;
}

}  // namespace

void AddGenerate(CLI::App& app, Cli& cli) {
  AddCommand<GenerateFlags>(
      app, cli, "generate", "Generate text and stream it to standard output",
      "  ripplekv generate --prompt \"Name three rivers.\"\n"
      "  ripplekv generate -d report.txt -q \"What was decided?\" --retention 0.1 --next-token-kl\n"
      "  cat log.txt | ripplekv generate -d - -q \"Which error comes first?\" --max-tokens 100\n"
      "  ripplekv generate --raw -p \"Once upon a time\" --temperature 0.8 --top-p 0.95 --seed 7\n"
      "  ripplekv generate --token-ids ids.txt --full --json\n"
      "  ripplekv generate --context ID --prompt \"And who objected?\"\n",
      AddFlags, Run);
}

}  // namespace ripplekv
