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
// Of rows, summed over the layers, at least 1: B = floor(bytes / bytes of a row) where every layer
// stores the same type.
struct TotalBytes {
  int64_t bytes = 0;
  bool operator==(const TotalBytes&) const = default;
};
// The smallest budget whose measured mean KL to the full cache is at most this (size_curve.h).
struct TargetMeanKl {
  double nats = 0;  // above 0, finite
  bool operator==(const TargetMeanKl&) const = default;
};
using Size = std::variant<Retention, TotalPositions, Full, TotalBytes, TargetMeanKl>;

// INVALID_ARGUMENT naming field, value and range.
absl::Status ValidateSize(const Size& size);

// Positions are int32 everywhere they are stored.
inline constexpr int64_t kMaxPromptTokens = 2147483647;

struct BudgetRequest {
  int64_t prompt_tokens = 0;  // T, 1 to kMaxPromptTokens
  Size size;                  // TargetMeanKl only after size_curve.h has turned it into another
  int64_t row_bytes = 0;      // of one row in one layer, for TotalBytes; 0: not known
  // A prompt is not compressed below this many positions a layer on average; 0 switches it off.
  int64_t min_positions = 0;
  // Every layer keeps at least min(floor, T): sinks + selector window + 1. At least 1.
  int64_t floor = 1;
};

// Positions per KV head that each layer keeps of one prompt, and how they are stored.
struct LayerBudgets {
  std::vector<int64_t> layer;  // b_l, each in [min(floor, T), T]
  std::vector<KvTypes> types;  // what each layer's rows are stored in; filled by Plan
  int64_t total = 0;           // B in force: the exact sum of `layer`
  int64_t requested = 0;       // B as `size` asks for it
  bool raised = false;         // by min_positions
  bool clamped = false;        // to [L * min(floor, T), L * T]; `total` is the clamped value
  bool full = false;           // every b_l = T: the prompt is not compressed
  int64_t bytes = 0;           // of the rows; filled by Plan, 0 where it knows no KvShape
  // What the rows may take where the plan chooses their types: never exceeded. Else 0.
  int64_t byte_budget = 0;

  bool operator==(const LayerBudgets&) const = default;
};

// B in force for a number of layers, and how it came about; `layer` is left empty. Errors as of
// ShareBudget.
absl::StatusOr<LayerBudgets> TotalBudget(const BudgetRequest& request, int64_t layers);

// One a layer, 1 to kMaxLayers, finite, positive, the largest at most 1e12 times the smallest:
// INVALID_ARGUMENT names index, value and range.
absl::Status ValidateMultipliers(absl::Span<const double> multipliers);

// Positions of sum `total`, each in [floor, cap], in proportion to valid multipliers as ShareBudget
// says. 0 <= floor <= cap <= kMaxPromptTokens; `total` within layers * floor and layers * cap.
std::vector<int64_t> ShareInProportion(int64_t total, int64_t floor, int64_t cap,
                                       absl::Span<const double> multipliers);

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
// INVALID_ARGUMENT names the field, its value and its range; FAILED_PRECONDITION: a size in bytes
// where the bytes of a row are not known, or a TargetMeanKl.
absl::StatusOr<LayerBudgets> ShareBudget(const BudgetRequest& request,
                                         absl::Span<const double> multipliers);

}  // namespace ripplekv
