#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace ripplekv {

// Allocators decide how many cache positions each layer keeps. Most turn a signal of each layer
// into multipliers w_l with mean 1, which budgets.h turns into integers; the others say how
// (docs/allocators.md).

// How a layer's signal s_l becomes s^_l in [0, 1]. All of a constant signal become 0.
enum class SignalMap : uint8_t {
  kMinMax,  // (s_l - min) / (max - min)
  kLog,     // the same of ln s_l, where a zero counts as the smallest positive s_l
  kRank,    // (number of smaller ones + half that of other equal ones) / (L - 1)
};

// arXiv 2608.08684, section 3, where the map is kMinMax: w_l = r^(s^_l), clipped to
// [1/gamma, gamma], rescaled to mean 1. The signal is the measured sensitivity.
struct RippleAllocator {
  double r = 1.5;       // 1 to 1e6: the largest ratio between two layers' budgets
  double gamma = 16.0;  // 1 to 1e6: clips w_l; changes nothing while gamma >= r
  SignalMap map = SignalMap::kMinMax;

  bool operator==(const RippleAllocator&) const = default;
};

// Every layer alike.
struct UniformAllocator {
  bool operator==(const UniformAllocator&) const = default;
};

// w_l proportional to sqrt(s_l), at least 1e-6 times the largest; a signal of zeros is uniform.
struct SqrtAllocator {
  bool operator==(const SqrtAllocator&) const = default;
};

// A control: the ripple of 1 - s^_l, so that the least sensitive layer gets the most.
struct InverseRippleAllocator {
  RippleAllocator ripple = {};
  bool operator==(const InverseRippleAllocator&) const = default;
};

// A control: the ripple of the same s_l in another order: Fisher and Yates from the last layer
// down, swapping l with next() mod (l + 1), where next() is SplitMix64 seeded with `seed`.
struct ShuffledRippleAllocator {
  RippleAllocator ripple = {};
  uint64_t seed = 0;
  bool operator==(const ShuffledRippleAllocator&) const = default;
};

// The ripple of D_l, the measured damage of compressing the layer alone to a retention: linear
// between the retentions measured.
struct IsolatedDamageAllocator {
  RippleAllocator ripple = {};
  double retention = 0.1;  // above 0, below 1; at least the smallest measured
  bool operator==(const IsolatedDamageAllocator&) const = default;
};

// The ripple of the measured response of the layer's own output (the paper's "w/o DS").
struct LocalResponseAllocator {
  RippleAllocator ripple = {};
  bool operator==(const LocalResponseAllocator&) const = default;
};

// arXiv 2406.02069 as in Zefan-Cai/KVCache-Factory (pyramid.h): more to the lower layers, whatever
// the model.
struct PyramidAllocator {
  double beta = 20;  // 1 (uniform) to 1e6: the last layer keeps 1/beta of the mean
  bool operator==(const PyramidAllocator&) const = default;
};

// w_l as given; only ratios matter.
struct MultipliersAllocator {
  // One a layer, finite, positive, the largest at most 1e12 times the smallest.
  std::vector<double> multipliers;
  bool operator==(const MultipliersAllocator&) const = default;
};

// b_l as given, within [min(floor, T), T], whatever the size. A prompt no longer than min_positions
// is not compressed.
struct PositionsAllocator {
  std::vector<int64_t> positions;  // one a layer, 1 to kMaxPromptTokens
  bool operator==(const PositionsAllocator&) const = default;
};

// Rows go where the measured marginal damage is greatest (damage_plan.h).
struct DamageCurvesAllocator {
  // Every layer keeps at least this share of the mean budget (in rows of the plan's own types),
  // whatever its curve says: 0 to 1; 1 is uniform in rows.
  double least_share = 0;
  bool operator==(const DamageCurvesAllocator&) const = default;
};

using Allocator =
    std::variant<RippleAllocator, UniformAllocator, SqrtAllocator, InverseRippleAllocator,
                 ShuffledRippleAllocator, IsolatedDamageAllocator, LocalResponseAllocator,
                 PyramidAllocator, MultipliersAllocator, PositionsAllocator, DamageCurvesAllocator>;

// One of each kind that has parameters which a server sets and a request need not.
struct Allocators {
  RippleAllocator ripple = {};  // of all that take a ripple
  ShuffledRippleAllocator shuffled_ripple = {};
  IsolatedDamageAllocator isolated_damage = {};
  PyramidAllocator pyramid = {};
  DamageCurvesAllocator damage_curves = {};
};

// Most layers a model may have: bounds the exact integer arithmetic of budgets.h.
inline constexpr int kMaxLayers = 4096;

// "ripple", "uniform", "sqrt", "inverse_ripple", "shuffled_ripple", "isolated_damage",
// "local_response", "pyramid", "multipliers", "positions" or "damage_curves".
std::string AllocatorName(const Allocator& allocator);
// "minmax", "log" or "rank".
std::string SignalMapName(SignalMap map);

// INVALID_ARGUMENT naming field, value and range.
absl::Status ValidateAllocator(const Allocator& allocator);

// What calibration must have measured for the allocator.
enum class Measurement : uint8_t { kNone, kSensitivity, kLocalResponse, kDamage };
Measurement NeededMeasurement(const Allocator& allocator);

// Whether its shares are the same for every prompt and size: it has multipliers.
bool HasMultipliers(const Allocator& allocator);

// Multipliers w_l, one a layer, each positive, mean 1, of an allocator that has them. `signal`
// holds what it is computed from, one finite value >= 0 a layer: s_l (mean KL, nats), the local
// response or D_l; it may be empty only for an allocator that needs no measurement. r = 1 (and a
// constant signal) gives exactly the bits of uniform, 1.0 everywhere. INVALID_ARGUMENT for
// parameters or a signal out of range, a wrong length, or layers outside [1, kMaxLayers].
absl::StatusOr<std::vector<double>> Multipliers(const Allocator& allocator,
                                                absl::Span<const double> signal, int layers);

}  // namespace ripplekv
