#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "calibration/policy/allocator.h"
#include "calibration/policy/selector.h"
#include "kernels/kv_type.h"

namespace ripplekv {

inline constexpr int kMaxDamageRetentions = 16;
inline constexpr int kMaxSizePrompts = 8;
inline constexpr int kMaxSizeRetentions = 16;

// How it is measured what compressing the whole model costs by size (calibration/policy/
// size_curve.h): every layer keeps the rows of a plan, in its types, at some prompt lengths and
// retentions. The plan is that of this profile's own measurements; settings' sinks and selector.
struct SizeSettings {
  int examples = 0;  // 0 (nothing of the kind, and all the other fields are empty) to 4096
  // Lengths of the prompts that are compressed, ascending, each 2 to 1048576, at most
  // kMaxSizePrompts.
  std::vector<int64_t> prompt_tokens = {};
  // Sizes, ascending, each above 0 to 1, at most kMaxSizeRetentions. Each must keep the rows that
  // a layer always does (LeastSizeRows) at the shortest of the lengths.
  std::vector<double> retentions = {};
  Allocator allocator = UniformAllocator{};  // any but positions
  // What rows are stored in; absent: the damage_curves allocator chooses it, up to kDearestChosen.
  std::optional<KvTypes> kv_types = {};

  bool operator==(const SizeSettings&) const = default;
};

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
  // kMaxDamageRetentions. The selector and the sinks choose the rows, so that a retention must
  // keep at least LeastDamageRows().
  std::vector<double> damage_retentions = {};
  // Also that the layer keeps all rows, but stored in fewer bits (kDamageTypes).
  bool damage_storage = false;

  // What chooses the rows that compressed layers keep, for damage_retentions and for the sizes. The
  // default where neither asks for any (selects()).
  SelectorSpec selector = SnapKv{};
  SizeSettings sizes = {};

  // Tokens of one example.
  int64_t example_tokens() const { return int64_t{prefix_tokens} + window_tokens; }
  // Tokens of one example of the sizes: the longest prompt and the window.
  int64_t size_example_tokens() const { return sizes.prompt_tokens.back() + window_tokens; }
  // Whether rows are chosen at all.
  bool selects() const { return !damage_retentions.empty() || sizes.examples > 0; }
  // Rows a KV head that a retention keeps: floor(retention * prefix_tokens), where a product less
  // than 1e-6 below a whole number counts as that number.
  int64_t DamageRows(double retention) const;
  // The sinks and the selector's window, which are kept in any case.
  int64_t LeastDamageRows() const;
  // The fewest that a plan gives a layer: one more.
  int64_t LeastSizeRows() const { return LeastDamageRows() + 1; }
  // The retentions that are measured where nobody says otherwise, 0.04 to 0.7, as far as this
  // prefix and the selector allow.
  std::vector<double> DefaultDamageRetentions() const;
  // The prompt lengths of the sizes where nobody says otherwise: prefix_tokens, twice and four
  // times as many, as far as the model's context allows.
  std::vector<int64_t> DefaultSizePrompts(int64_t context_length) const;
  // The same of the retentions, 0.05 to 1, as far as sizes.prompt_tokens and the selector allow.
  std::vector<double> DefaultSizeRetentions() const;

  // INVALID_ARGUMENT naming field, value and range. Beyond the ranges above, sinks + recent must
  // leave a prefix position to perturb, an example must fit the model's context, and what the
  // allocator of the sizes needs must be measured.
  absl::Status Validate(int64_t context_length) const;

  bool operator==(const CalibrationSettings&) const = default;
};

// The types of keys and values whose storage damage is measured.
inline constexpr KvTypes kDamageTypes[] = {KvTypes(KvType::kInt8), KvTypes(KvType::kInt4),
                                           KvTypes(KvType::kInt8, KvType::kInt4)};

}  // namespace ripplekv
