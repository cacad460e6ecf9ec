#include "calibration/policy/selector.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <iterator>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "calibration/policy/budgets.h"
#include "kernels/philox.h"

namespace ripplekv {
namespace {

constexpr int kMaxWindow = 1024;
constexpr int kMaxKernel = 63;
constexpr int kMaxQueries = 512;
constexpr uint32_t kRandomStream = 0x73656c65;

absl::Status OutOfRange(const std::string& field, int64_t value, const std::string& range) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ": must be ", range));
}

// Unsigned integers in the order of the floats; NaN equals -inf, -0 equals +0.
uint32_t OrderedBits(float score) {
  if (std::isnan(score)) score = -INFINITY;
  const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Total order over positions: the higher score first, then the lower position.
uint64_t RankKey(float score, uint32_t position) {
  return uint64_t{OrderedBits(score)} << 32 | (0xffffffffu - position);
}

}  // namespace

std::string SelectorName(const SelectorSpec& selector) {
  static constexpr const char* kNames[] = {"snapkv", "h2o",           "recent_attention",
                                           "mixed",  "streaming_llm", "random"};
  static_assert(std::size(kNames) == std::variant_size_v<SelectorSpec>);
  return kNames[selector.index()];
}

std::string PoolingName(Pooling pooling) {
  switch (pooling) {
    case Pooling::kMax:
      return "max";
    case Pooling::kMean:
      return "mean";
    case Pooling::kNone:
      break;
  }
  return "none";
}

absl::Status ValidateSelector(const SelectorSpec& selector) {
  const std::string name = SelectorName(selector);
  const bool holds_snapkv = std::holds_alternative<MixedAttention>(selector);
  const std::string outer = holds_snapkv ? name + ".snapkv" : name;  // of what SnapKV has too
  absl::Status status;
  const auto check = [&](const std::string& field, int64_t value, bool good,
                         const std::string& range) {
    if (!good) status.Update(OutOfRange(field, value, range));
  };
  const int window = SelectorWindow(selector);
  check(outer + ".window", window, window >= 1 && window <= kMaxWindow,
        absl::StrCat("between 1 and ", kMaxWindow));
  const auto check_queries = [&](int queries) {
    check(name + ".queries", queries, queries >= 1 && queries <= kMaxQueries,
          absl::StrCat("between 1 and ", kMaxQueries));
  };
  const auto check_pooling = [&](int kernel, Pooling pooling) {
    check(outer + ".kernel", kernel, kernel >= 1 && kernel <= kMaxKernel && kernel % 2 == 1,
          absl::StrCat("odd and between 1 and ", kMaxKernel));
    check(outer + ".pooling", static_cast<int>(pooling),
          pooling == Pooling::kMax || pooling == Pooling::kMean || pooling == Pooling::kNone,
          "max, mean or none");
  };
  if (const auto* snapkv = std::get_if<SnapKv>(&selector)) {
    check_pooling(snapkv->kernel, snapkv->pooling);
  } else if (const auto* h2o = std::get_if<H2o>(&selector)) {
    check_queries(h2o->queries);
  } else if (const auto* recent = std::get_if<RecentAttention>(&selector)) {
    check_queries(recent->queries);
    check_pooling(recent->kernel, recent->pooling);
  } else if (const auto* mixed = std::get_if<MixedAttention>(&selector)) {
    check_queries(mixed->queries);
    check_pooling(mixed->snapkv.kernel, mixed->snapkv.pooling);
    if (!(mixed->weight >= 0 && mixed->weight <= 1)) {
      status.Update(absl::InvalidArgumentError(
          absl::StrCat("mixed.weight is ", mixed->weight, ": must be between 0 and 1")));
    }
  }
  return status;
}

int SelectorWindow(const SelectorSpec& selector) {
  return std::visit(
      [](const auto& s) {
        if constexpr (std::is_same_v<std::decay_t<decltype(s)>, MixedAttention>) {
          return s.snapkv.window;
        } else {
          return s.window;
        }
      },
      selector);
}

int MaxVotingQueries(const SelectorSpec& selector) {
  if (const auto* snapkv = std::get_if<SnapKv>(&selector)) return snapkv->window;
  if (const auto* h2o = std::get_if<H2o>(&selector)) return h2o->queries;
  if (const auto* recent = std::get_if<RecentAttention>(&selector)) return recent->queries;
  if (const auto* mixed = std::get_if<MixedAttention>(&selector)) {
    return std::max(mixed->queries, mixed->snapkv.window);
  }
  return 0;
}

std::vector<int32_t> VotingQueries(const SelectorSpec& selector, int64_t prompt_tokens) {
  const int64_t n = std::min<int64_t>(MaxVotingQueries(selector), prompt_tokens);
  const bool strided = std::holds_alternative<H2o>(selector);
  std::vector<int32_t> positions(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    positions[static_cast<size_t>(i)] =
        static_cast<int32_t>(strided ? (i + 1) * prompt_tokens / n - 1 : prompt_tokens - n + i);
  }
  return positions;
}

void MixScores(absl::Span<const float> snapkv, absl::Span<const float> recent, int sinks,
               double weight, absl::Span<float> out) {
  const auto scale = [&](absl::Span<const float> scores) {
    double sum = 0;
    for (size_t u = static_cast<size_t>(sinks); u < scores.size(); ++u) sum += double{scores[u]};
    return sum > 0 ? 1 / sum : 1.0;
  };
  const double of_snapkv = weight * scale(snapkv);
  const double of_recent = (1 - weight) * scale(recent);
  for (size_t u = 0; u < out.size(); ++u) {
    out[u] = static_cast<float>(of_snapkv * double{snapkv[u]} + of_recent * double{recent[u]});
  }
}

std::vector<float> RandomScores(uint64_t seed, int layer, int kv_head, int64_t positions) {
  std::vector<float> scores(static_cast<size_t>(positions));
  for (size_t u = 0; u < scores.size(); ++u) {
    const uint32_t word =
        Philox4x32({static_cast<uint32_t>(u), static_cast<uint32_t>(kv_head),
                    static_cast<uint32_t>(layer), kRandomStream},
                   {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)})[0];
    scores[u] = static_cast<float>(word >> 8) * 0x1p-24f;
  }
  return scores;
}

namespace {

absl::Status CheckChoice(int64_t prompt_tokens, int64_t budget, int sinks, int window) {
  if (prompt_tokens < 1 || prompt_tokens > kMaxPromptTokens) {
    return OutOfRange("prompt_tokens", prompt_tokens,
                      absl::StrCat("between 1 and ", kMaxPromptTokens));
  }
  if (sinks < 0) return OutOfRange("sinks", sinks, "at least 0");
  if (window < 0) return OutOfRange("window", window, "at least 0");
  const int64_t forced = std::min(int64_t{sinks} + window, prompt_tokens);
  if (budget < forced || budget > prompt_tokens) {
    return OutOfRange("budget", budget,
                      absl::StrCat("between ", forced, " (sinks ", sinks, " + window ", window,
                                   ", at most the prompt) and ", prompt_tokens));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> SelectRecent(int64_t prompt_tokens, int64_t budget, int sinks,
                                                  int window) {
  if (absl::Status status = CheckChoice(prompt_tokens, budget, sinks, window); !status.ok()) {
    return status;
  }
  const int64_t first = std::min<int64_t>(sinks, budget);
  std::vector<int32_t> kept(static_cast<size_t>(budget));
  for (int64_t i = 0; i < budget; ++i) {
    kept[static_cast<size_t>(i)] = static_cast<int32_t>(i < first ? i : prompt_tokens - budget + i);
  }
  return kept;
}

absl::StatusOr<std::vector<int32_t>> SelectPositions(absl::Span<const float> scores,
                                                     int64_t prompt_tokens, int64_t budget,
                                                     int sinks, int window) {
  if (absl::Status status = CheckChoice(prompt_tokens, budget, sinks, window); !status.ok()) {
    return status;
  }
  const int64_t forced = std::min(int64_t{sinks} + window, prompt_tokens);
  const int64_t scored = std::max<int64_t>(0, prompt_tokens - window);
  if (static_cast<int64_t>(scores.size()) != scored) {
    return OutOfRange("the number of scores", static_cast<int64_t>(scores.size()),
                      absl::StrCat(scored, " (prompt ", prompt_tokens, " - window ", window, ")"));
  }

  // The lowest rank key that is still kept; keys are distinct, so it cuts exactly. 0 keeps all.
  const int64_t first = std::min<int64_t>(sinks, scored);
  const int64_t wanted = budget - forced;  // of the scored positions behind the sinks
  uint64_t cut = 0;
  if (wanted > 0 && wanted < scored - first) {
    std::vector<uint64_t> keys;
    keys.reserve(scored - first);
    for (int64_t i = first; i < scored; ++i) keys.push_back(RankKey(scores[i], uint32_t(i)));
    std::nth_element(keys.begin(), keys.begin() + (wanted - 1), keys.end(), std::greater<>());
    cut = keys[wanted - 1];
  }

  std::vector<int32_t> kept;
  kept.reserve(budget);
  for (int64_t i = 0; i < first; ++i) kept.push_back(int32_t(i));
  if (wanted > 0) {
    for (int64_t i = first; i < scored; ++i) {
      if (RankKey(scores[i], uint32_t(i)) >= cut) kept.push_back(int32_t(i));
    }
  }
  for (int64_t i = scored; i < prompt_tokens; ++i) kept.push_back(int32_t(i));
  return kept;
}

}  // namespace ripplekv
