#pragma once

#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace ripplekv {

// Allocators decide how many cache positions each layer keeps. An allocator turns a sensitivity
// profile into multipliers w_l with mean 1; budgets.h turns multipliers into integers.

// arXiv 2608.08684, section 3: s^_l = (s_l - min) / (max - min), 0 for a constant profile;
// w_l = r^(s^_l), clipped to [1/gamma, gamma], rescaled to mean 1.
struct RippleAllocator {
  double r = 1.5;       // 1 to 1e6: the largest ratio between two layers' budgets
  double gamma = 16.0;  // 1 to 1e6: clips w_l; changes nothing while gamma >= r

  bool operator==(const RippleAllocator&) const = default;
};

// Every layer alike.
struct UniformAllocator {
  bool operator==(const UniformAllocator&) const = default;
};

using Allocator = std::variant<RippleAllocator, UniformAllocator>;

// Most layers a model may have: bounds the exact integer arithmetic of budgets.h.
inline constexpr int kMaxLayers = 4096;

// "ripple" or "uniform".
std::string AllocatorName(const Allocator& allocator);

// INVALID_ARGUMENT naming field, value and range.
absl::Status ValidateAllocator(const Allocator& allocator);

// Whether the allocator needs a measured profile.
bool NeedsSensitivity(const Allocator& allocator);

// Multipliers w_l, one a layer, each positive, mean 1. `sensitivity` holds s_l >= 0 (mean KL, nats)
// and may be empty only for an allocator that needs none. r = 1 (and a constant profile) gives
// exactly the bits of uniform, 1.0 everywhere. INVALID_ARGUMENT for parameters or s_l out of range,
// a wrong length, or layers outside [1, kMaxLayers].
absl::StatusOr<std::vector<double>> Multipliers(const Allocator& allocator,
                                                absl::Span<const double> sensitivity, int layers);

}  // namespace ripplekv
