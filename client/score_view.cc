#include "client/score_view.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/fact_sheet.h"
#include "client/format.h"
#include "client/kept_positions.h"
#include "client/utf8.h"

namespace ripplekv {

namespace {

// Mean KL and the share of tokens whose most probable one is the full cache's too.
std::string Fidelity(const v1::ContinuationScore& score) {
  const auto agree = std::count_if(score.tokens().begin(), score.tokens().end(),
                                   [](const v1::TokenScore& token) { return token.top1_agrees(); });
  const int tokens = score.tokens_size();
  return absl::StrFormat("%10.6f  %8s  ", score.mean_kl(),
                         tokens > 0 ? FormatPercent(static_cast<double>(agree) / tokens) : "-");
}

}  // namespace

std::string RenderScores(const v1::ScoreResponse& response, const Terminal& terminal) {
  const auto& scores = response.continuations();
  const auto best =
      std::max_element(scores.begin(), scores.end(),
                       [](const auto& a, const auto& b) { return a.logprob() < b.logprob(); });
  const bool compared =
      std::any_of(scores.begin(), scores.end(), [](const auto& s) { return s.has_mean_kl(); });
  std::string text = absl::StrCat(
      terminal.Dim(absl::StrCat("      total   per token  greedy  tokens  ",
                                compared ? "   mean KL  same top  " : "", "continuation")),
      "\n");
  for (auto score = scores.begin(); score != scores.end(); ++score) {
    std::string continuation;
    for (const v1::TokenScore& token : score->tokens()) continuation += token.token();
    const int tokens = score->tokens_size();
    const std::string line =
        TakeColumns(absl::StrFormat("%11.4f %11.4f  %-6s %7d  %s'%s'", score->logprob(),
                                    tokens > 0 ? score->logprob() / tokens : 0.0,
                                    score->greedy() ? "yes" : "no", tokens,
                                    compared ? Fidelity(*score) : "", Escaped(continuation)),
                    terminal.width);
    absl::StrAppend(&text, score == best && scores.size() > 1 ? terminal.Bold(line) : line, "\n");
  }
  return text;
}

std::string RenderScoreSummary(const v1::ScoreResponse& response, const Terminal& terminal) {
  const v1::Usage& usage = response.usage();
  const v1::Timings& timings = response.timings();
  const v1::CacheUsage& cache = response.cache();
  FactSheet sheet;
  sheet.Add("tokens", {usage.context_tokens() > 0
                           ? absl::StrCat("context ", FormatCount(usage.context_tokens()))
                           : "",
                       absl::StrCat("prompt ", FormatCount(usage.prompt_tokens())),
                       absl::StrCat("continuations ", FormatCount(usage.output_tokens()))});
  sheet.Add("speed",
            {absl::StrCat("prefill ", FormatRate(usage.prompt_tokens(), timings.prefill_seconds())),
             absl::StrCat("scored ", FormatRate(usage.output_tokens(), timings.decode_seconds())),
             timings.queue_seconds() >= 0.0005
                 ? absl::StrCat("queued ", FormatSeconds(timings.queue_seconds()))
                 : ""});
  sheet.Add("kept", KeptPositions(cache.layers(), usage.context_tokens() + usage.prompt_tokens()));
  sheet.Add("cache",
            {cache.full_kv_bytes() > 0 ? absl::StrCat(FormatBytes(cache.kv_bytes()), " of ",
                                                      FormatBytes(cache.full_kv_bytes()))
                                       : ""});
  return sheet.Render(terminal);
}

}  // namespace ripplekv
