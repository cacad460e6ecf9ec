#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ripplekv/v1/profile.pb.h"

namespace ripplekv {

// The size and its division over layers.
struct BudgetFlags {
  std::optional<double> retention, target_mean_kl;
  std::optional<int64_t> total_positions, total_bytes;
  bool full = false;
  std::string allocator;
  std::optional<double> ripple_r, ripple_gamma, pyramid_beta, damage_retention, damage_least_share;
  std::string ripple_map;
  std::optional<uint64_t> shuffle_seed;
  std::string layer_multipliers, layer_positions;  // numbers between commas

  void Add(CLI::App& app);
  std::optional<v1::CacheSize> Size() const;
  // Absent where no flag is given. INVALID_ARGUMENT where parameters come with another allocator,
  // or a list is none.
  absl::StatusOr<std::optional<v1::Allocator>> MakeAllocator() const;
};

}  // namespace ripplekv
