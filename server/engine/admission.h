#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "calibration/policy/plan.h"
#include "kernels/kv_page.h"

namespace ripplekv {

/// What a request reserves before it starts.
struct Admission {
  LayerBudgets budgets;
  std::vector<int64_t> capacity_rows;  // b_l + max_tokens, one a layer
  int64_t pages = 0;                   // of all layers
};

/// Rows and pages of a prompt under a plan.
absl::StatusOr<Admission> PlanAdmission(const Plan& plan, const std::optional<Size>& size,
                                        int64_t prompt_tokens, int64_t max_tokens,
                                        const KvPageLayout& layout);

/// PlanAdmission, and RESOURCE_EXHAUSTED where an empty arena of `arena_pages` cannot hold it: the
/// message gives pages and bytes wanted and there, and the largest max_tokens, or else the longest
/// prompt, that would fit.
absl::StatusOr<Admission> AdmitOrExplain(const Plan& plan, const std::optional<Size>& size,
                                         int64_t prompt_tokens, int64_t max_tokens,
                                         const KvPageLayout& layout, int64_t arena_pages);

}  // namespace ripplekv
