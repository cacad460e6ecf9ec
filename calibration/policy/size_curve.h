#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
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
  int sinks = 4;
  std::optional<KvTypes> kv_types;     // absent: chosen by the plan
  std::vector<int64_t> prompt_tokens;  // ascending, at least 1: lengths of the prefixes
  std::vector<double> retentions;      // ascending, each in (0, 1]: as of the size `retention`
  std::vector<std::vector<double>> mean_kl;  // [prompt_tokens][retentions], finite, >= 0

  bool empty() const { return mean_kl.empty(); }
  bool operator==(const SizeCurve&) const = default;
};

// INVALID_ARGUMENT where the curve is not as above.
absl::Status ValidateSizeCurve(const SizeCurve& curve);

// The smallest retention in (0, 1] whose mean KL is taken to be at most `nats` (above 0) for a
// prompt of `tokens`. The curve must be valid and not empty.
//
// Per measured length: the measured KL is first made to fall with the retention by raising each
// value to the largest of those to the right of it (noise never makes a size look better than a
// larger one); between neighbours ln KL is linear in ln retention (KL itself in the retention where
// an end is 0, as between the last measured one and (1, 0), where 1 is not measured). A target
// above the KL of the smallest measured retention gives that retention: nothing is known below it;
// one below the KL of the measured retention 1 (rows rounded to few bits) gives 1. Between measured
// lengths ln retention is linear in ln tokens; beyond them the nearest length's curve holds.
double RetentionForMeanKl(const SizeCurve& curve, double nats, int64_t tokens);

}  // namespace ripplekv
