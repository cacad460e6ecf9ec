#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "calibration/policy/allocator.h"
#include "calibration/policy/selector.h"
#include "kernels/kv_type.h"

namespace ripplekv {

// What compressing the whole model costs by size, measured: the mean KL of the output distribution
// to that of the full cache, in nats, over the evaluation windows of the calibration examples. It
// holds for the plan that it was measured under.
struct SizeCurve {
  Allocator allocator;
  SelectorSpec selector;
  std::optional<KvTypes> kv_types;     // absent: chosen by the plan
  std::vector<int64_t> prompt_tokens;  // ascending: lengths of the prefixes
  std::vector<double> retentions;      // ascending, each in (0, 1): as of the size `retention`
  std::vector<std::vector<double>> mean_kl;  // [prompt_tokens][retentions], finite, >= 0

  bool empty() const { return mean_kl.empty(); }
  bool operator==(const SizeCurve&) const = default;
};

}  // namespace ripplekv
