#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace ripplekv {

// How a sensitivity profile is measured. Part of the profile's identity.
struct CalibrationSettings {
  int examples = 24;         // 1 to 4096
  int prefix_tokens = 1024;  // 2 to 1048576: builds the cache
  int window_tokens = 64;    // 1 to 65536: teacher-forced, measured
  double eta = 0.5;          // 0 to 10: relative noise ||dv|| / ||v||; alpha = eta / sqrt(head_dim)
  int sinks = 4;             // 0 to 65536: first prefix positions, never perturbed
  int recent = 32;           // 0 to 65536: last prefix positions, never perturbed
  uint64_t seed = 0;

  // Tokens of one example.
  int64_t example_tokens() const { return int64_t{prefix_tokens} + window_tokens; }

  // INVALID_ARGUMENT naming field, value and range. Beyond the ranges above, sinks + recent must
  // leave a prefix position to perturb and an example must fit the model's context.
  absl::Status Validate(int64_t context_length) const;

  bool operator==(const CalibrationSettings&) const = default;
};

}  // namespace ripplekv
