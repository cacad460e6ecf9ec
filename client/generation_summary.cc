#include "client/generation_summary.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/bar_chart.h"
#include "client/fact_sheet.h"
#include "client/format.h"
#include "client/kept_positions.h"
#include "client/names.h"
#include "client/utf8.h"

namespace ripplekv {
namespace {

constexpr int kMaxChartColumns = 72;

std::string Finish(const v1::GenerateComplete& complete) {
  switch (complete.matched_stop_case()) {
    case v1::GenerateComplete::kStopString:
      return absl::StrCat(NameOf(complete.finish_reason()), " '", Escaped(complete.stop_string()),
                          "'");
    case v1::GenerateComplete::kStopTokenId:
      if (complete.finish_reason() == v1::FINISH_REASON_STOP_TOKEN) {
        return absl::StrCat(NameOf(complete.finish_reason()), " ", complete.stop_token_id());
      }
      break;
    default:
      break;
  }
  return NameOf(complete.finish_reason());
}

// Of the full cache; nothing where there is none.
std::string Share(const v1::CacheUsage& cache) {
  if (cache.full_kv_bytes() <= 0) return "";
  return FormatPercent(static_cast<double>(cache.kv_bytes()) /
                       static_cast<double>(cache.full_kv_bytes()));
}

// The first token comes out of the prefill: decoding makes the others.
std::string DecodeRate(const v1::GenerateComplete& complete) {
  return FormatRate(complete.usage().output_tokens() - 1, complete.timings().decode_seconds());
}

}  // namespace

std::string RenderSummary(const v1::GenerateComplete& complete, const Terminal& terminal) {
  const v1::Usage& usage = complete.usage();
  const v1::CacheUsage& cache = complete.cache();
  const v1::Timings& timings = complete.timings();
  FactSheet sheet;
  sheet.Add(
      "tokens",
      {usage.context_tokens() > 0 ? absl::StrCat("context ", FormatCount(usage.context_tokens()))
                                  : "",
       absl::StrCat("prompt ", FormatCount(usage.prompt_tokens())),
       absl::StrCat("output ", FormatCount(usage.output_tokens())), Finish(complete)});
  sheet.Add("speed",
            {absl::StrCat("prefill ", FormatRate(usage.prompt_tokens(), timings.prefill_seconds())),
             absl::StrCat("decode ", DecodeRate(complete)),
             timings.first_token_seconds() > 0
                 ? absl::StrCat("first token after ", FormatSeconds(timings.first_token_seconds()))
                 : "",
             timings.queue_seconds() >= 0.0005
                 ? absl::StrCat("queued ", FormatSeconds(timings.queue_seconds()))
                 : ""});
  const std::string share = Share(cache);
  sheet.Add("kept", KeptPositions(cache.layers(), usage.context_tokens() + usage.prompt_tokens()));
  if (complete.compactions() > 0) {
    sheet.Add("growth",
              {absl::StrCat("compacted back ", FormatCount(complete.compactions()), " times")});
  }
  sheet.Add("peak KV",
            {cache.peak_prefill_bytes() > 0
                 ? absl::StrCat(FormatBytes(cache.peak_prefill_bytes()), " during the prefill")
                 : ""});
  if (complete.has_next_token_kl()) {
    sheet.Add("fidelity",
              {absl::StrCat("next_token_kl ", FormatNumber(complete.next_token_kl()), " nats"),
               complete.has_next_token_kl_floor()
                   ? absl::StrCat("floor ", FormatNumber(complete.next_token_kl_floor()))
                   : ""});
  }
  sheet.Add("seed", {absl::StrCat(complete.seed())});
  std::string summary = sheet.Render(terminal);
  if (cache.full_kv_bytes() > 0) {
    const std::string taken = FormatBytes(cache.kv_bytes());
    const std::vector<BarChartRow> rows = {
        {"cache in full", static_cast<double>(cache.full_kv_bytes()),
         FormatBytes(cache.full_kv_bytes()), FormatBytes(cache.full_kv_bytes())},
        {"cache taken", static_cast<double>(cache.kv_bytes()), absl::StrCat(taken, ", ", share),
         taken}};
    const BarScale scale = LinearScale({rows[0].value, rows[1].value});
    absl::StrAppend(&summary, RenderBarChart(rows, scale,
                                             {.width = std::min(terminal.width, kMaxChartColumns),
                                              .utf8 = terminal.utf8,
                                              .mark = std::nullopt}));
  }
  return summary;
}

std::string RenderShortSummary(const v1::GenerateComplete& complete, const Terminal& terminal) {
  const v1::CacheUsage& cache = complete.cache();
  std::string line = absl::StrCat(
      complete.usage().context_tokens() > 0
          ? absl::StrCat("context ", FormatCount(complete.usage().context_tokens()), " + ")
          : "",
      FormatCount(complete.usage().prompt_tokens()), " tokens in, ",
      FormatCount(complete.usage().output_tokens()), " out", terminal.separator(), "cache ",
      FormatBytes(cache.kv_bytes()), " of ", FormatBytes(cache.full_kv_bytes()),
      terminal.separator(), DecodeRate(complete));
  if (complete.finish_reason() == v1::FINISH_REASON_MAX_TOKENS) {
    absl::StrAppend(&line, terminal.separator(), NameOf(complete.finish_reason()));
  }
  return TakeColumns(line, terminal.width);
}

std::string RenderLogprobs(const google::protobuf::RepeatedPtrField<v1::TokenLogprob>& logprobs) {
  std::string text;
  for (const v1::TokenLogprob& token : logprobs) {
    absl::StrAppendFormat(&text, "%9.4f  '%s'", token.logprob(), Escaped(token.token()));
    for (int i = 0; i < token.top_size(); ++i) {
      absl::StrAppendFormat(&text, "%s'%s' %.4f", i == 0 ? "   among " : ", ",
                            Escaped(token.top(i).token()), token.top(i).logprob());
    }
    text += "\n";
  }
  return text;
}

}  // namespace ripplekv
