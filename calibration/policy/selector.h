#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/pooling.h"

namespace ripplekv {

// Selectors decide which positions a layer keeps, per KV head. This file holds their parameters and
// the final choice from scores; scoring itself runs where the queries and keys are.

// arXiv 2404.14469: the last `window` queries' attention over the prompt, averaged over the window,
// pooled along the positions before it (stride 1, `kernel` wide, centred), averaged over the query
// heads of the KV head.
struct SnapKv {
  int window = 32;  // 1 to 1024 tokens, always kept
  int kernel = 7;   // odd, 1 to 63 positions
  Pooling pooling = Pooling::kMax;

  bool operator==(const SnapKv&) const = default;
};

using SelectorSpec = std::variant<SnapKv>;

// "snapkv".
std::string SelectorName(const SelectorSpec& selector);
// "max", "mean" or "none".
std::string PoolingName(Pooling pooling);

// INVALID_ARGUMENT naming field, value and range.
absl::Status ValidateSelector(const SelectorSpec& selector);

// Most recent positions that the selector always keeps.
int SelectorWindow(const SelectorSpec& selector);

// The positions that one KV head keeps: exactly `budget` of them, ascending. The first `sinks` and
// the last `window` positions are always among them; the best-scored of the rest fill up. Equal
// scores go to the lower position; NaN counts as the lowest score of all, like -inf.
//
// scores: [max(0, prompt_tokens - window)], pooled, one KV head; those of the sinks are not read.
// budget: min(sinks + window, prompt_tokens) to prompt_tokens.
// O(prompt_tokens). INVALID_ARGUMENT names the argument, its value and its range.
absl::StatusOr<std::vector<int32_t>> SelectPositions(absl::Span<const float> scores,
                                                     int64_t prompt_tokens, int64_t budget,
                                                     int sinks, int window);

}  // namespace ripplekv
