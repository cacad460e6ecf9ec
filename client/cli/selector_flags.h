#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "ripplekv/v1/decode.pb.h"

namespace ripplekv {

// Which positions a layer keeps: the flags that the servers have too. Targets outlive the parsing.
struct SelectorFlags {
  std::string selector;
  std::optional<int32_t> window, kernel, queries, recent_kernel;
  std::string pooling, recent_pooling;
  bool h2o_normalised = false;
  std::optional<double> mixed_weight;
  std::optional<uint64_t> random_seed;

  void Add(CLI::App& app, const std::string& group);
  // Unset where no flag is given. Without --selector it is SnapKV. INVALID_ARGUMENT where a flag
  // does not go with the selector.
  absl::StatusOr<std::optional<v1::Selector>> Make() const;
};

}  // namespace ripplekv
