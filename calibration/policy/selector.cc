#include "calibration/policy/selector.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "absl/strings/str_cat.h"
#include "calibration/policy/budgets.h"

namespace ripplekv {
namespace {

constexpr int kMaxWindow = 1024;
constexpr int kMaxKernel = 63;

absl::Status OutOfRange(const char* field, int64_t value, const std::string& range) {
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

std::string SelectorName(const SelectorSpec&) { return "snapkv"; }

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
  const auto& snapkv = std::get<SnapKv>(selector);
  if (snapkv.window < 1 || snapkv.window > kMaxWindow) {
    return OutOfRange("snapkv.window", snapkv.window, absl::StrCat("between 1 and ", kMaxWindow));
  }
  if (snapkv.kernel < 1 || snapkv.kernel > kMaxKernel || snapkv.kernel % 2 == 0) {
    return OutOfRange("snapkv.kernel", snapkv.kernel,
                      absl::StrCat("odd and between 1 and ", kMaxKernel));
  }
  if (snapkv.pooling != Pooling::kMax && snapkv.pooling != Pooling::kMean &&
      snapkv.pooling != Pooling::kNone) {
    return OutOfRange("snapkv.pooling", static_cast<int>(snapkv.pooling), "max, mean or none");
  }
  return absl::OkStatus();
}

int SelectorWindow(const SelectorSpec& selector) { return std::get<SnapKv>(selector).window; }

absl::StatusOr<std::vector<int32_t>> SelectPositions(absl::Span<const float> scores,
                                                     int64_t prompt_tokens, int64_t budget,
                                                     int sinks, int window) {
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
