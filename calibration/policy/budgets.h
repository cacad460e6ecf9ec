#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/kv_type.h"

namespace ripplekv {

// How much of a prompt's cache is kept, all layers together.
struct Retention {
  // (0, 1]: B = layers * floor(fraction * prompt tokens). A product less than 1e-6 below a whole
  // number counts as that number, so that 0.29 of 100 tokens is 29 although 0.29 * 100 is
  // 28.999999999999996 in binary.
  double fraction = 1.0;
  bool operator==(const Retention&) const = default;
};
struct TotalPositions {
  int64_t positions = 0;  // B itself, positions per KV head summed over the layers; at least 1
  bool operator==(const TotalPositions&) const = default;
};
struct Full {
  bool operator==(const Full&) const = default;
};
using Size = std::variant<Retention, TotalPositions, Full>;

// INVALID_ARGUMENT naming field, value and range.
absl::Status ValidateSize(const Size& size);

// Positions are int32 everywhere they are stored.
inline constexpr int64_t kMaxPromptTokens = 2147483647;

struct BudgetRequest {
  int64_t prompt_tokens = 0;  // T, 1 to kMaxPromptTokens
  Size size;
  // A prompt is not compressed below this many positions a layer on average; 0 switches it off.
  int64_t min_positions = 0;
  // Every layer keeps at least min(floor, T): sinks + selector window + 1. At least 1.
  int64_t floor = 1;
};

// Positions per KV head that each layer keeps of one prompt.
struct LayerBudgets {
  std::vector<int64_t> layer;  // b_l, each in [min(floor, T), T]
  std::vector<KvTypes> types;  // what each layer's rows are stored in; filled by Plan
  int64_t total = 0;           // B in force: the exact sum of `layer`
  int64_t requested = 0;       // B as `size` asks for it
  bool raised = false;         // by min_positions
  bool clamped = false;        // to [L * min(floor, T), L * T]; `total` is the clamped value
  bool full = false;           // every b_l = T: the prompt is not compressed
  int64_t bytes = 0;           // of the rows; filled by Plan, 0 where it knows no KvShape

  bool operator==(const LayerBudgets&) const = default;
};

// Shares B out over the layers in proportion to `multipliers` (one a layer, finite, positive, the
// largest at most 1e12 times the smallest; only their ratios matter).
//
// B = what `size` asks for, raised to L * min(min_positions, T), clamped to
// [L * min(floor, T), L * T]. The real-valued shares are x_l = clamp(lambda * w_l, floor, T) with
// the one lambda that makes their sum B (water-filling: what a bound takes or leaves is
// redistributed over the other layers in proportion); x_l is rounded by largest remainder, ties to
// the lower layer, so that the sum stays B exactly. All of it in 128-bit integers: no overflow, no
// rounding of the shares, and equal multipliers of any value give the same budgets. (Multipliers
// are scaled by one power of two to below 2^62 and truncated: exact while they span less than a
// factor of 512.)
//
// INVALID_ARGUMENT names the field, its value and its range.
absl::StatusOr<LayerBudgets> ShareBudget(const BudgetRequest& request,
                                         absl::Span<const double> multipliers);

}  // namespace ripplekv
