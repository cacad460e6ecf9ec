#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "calibration/policy/selector.h"
#include "kernels/kv_type.h"

namespace ripplekv {

inline constexpr int kMaxDamageRetentions = 16;

// How a sensitivity profile is measured. Part of the profile's identity.
struct CalibrationSettings {
  int examples = 24;         // 1 to 4096
  int prefix_tokens = 1024;  // 2 to 1048576: builds the cache
  int window_tokens = 64;    // 1 to 65536: teacher-forced, measured
  double eta = 0.5;          // 0 to 10: relative noise ||dv|| / ||v||; alpha = eta / sqrt(head_dim)
  int sinks = 4;             // 0 to 65536: first prefix positions, never perturbed
  int recent = 32;           // 0 to 65536: last prefix positions, never perturbed
  uint64_t seed = 0;

  // The examples, the last ones, on which it is measured what compressing each layer alone costs:
  // 0 (nothing of the kind, and the two fields below are empty and false) to `examples`.
  int damage_examples = 0;
  // Shares of the prefix's rows that the layer keeps, ascending, each above 0 and below 1, at most
  // kMaxDamageRetentions. DamageSelector and the sinks choose the rows, so that a retention must
  // keep at least LeastDamageRows().
  std::vector<double> damage_retentions = {};
  // Also that the layer keeps all rows, but stored in fewer bits (kDamageTypes).
  bool damage_storage = false;

  // Tokens of one example.
  int64_t example_tokens() const { return int64_t{prefix_tokens} + window_tokens; }
  // Rows a KV head that a retention keeps: floor(retention * prefix_tokens), where a product less
  // than 1e-6 below a whole number counts as that number.
  int64_t DamageRows(double retention) const;
  // The sinks and the selector's window, which are kept in any case.
  int64_t LeastDamageRows() const;
  // The retentions that are measured where nobody says otherwise, 0.04 to 0.7, as far as this
  // prefix allows.
  std::vector<double> DefaultDamageRetentions() const;

  // INVALID_ARGUMENT naming field, value and range. Beyond the ranges above, sinks + recent must
  // leave a prefix position to perturb and an example must fit the model's context.
  absl::Status Validate(int64_t context_length) const;

  bool operator==(const CalibrationSettings&) const = default;
};

// What chooses the rows that a compressed layer keeps: SnapKV with its defaults.
inline constexpr SnapKv DamageSelector() { return SnapKv{}; }

// The types of keys and values whose storage damage is measured.
inline constexpr KvTypes kDamageTypes[] = {KvTypes(KvType::kInt8), KvTypes(KvType::kInt4),
                                           KvTypes(KvType::kInt8, KvType::kInt4)};

}  // namespace ripplekv
