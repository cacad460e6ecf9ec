#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "calibration/policy/plan.h"
#include "kernels/kv_page.h"

namespace ripplekv {

/// How the rows of a full cache (Score with a reference) lie in pages of the same size: as they
/// were computed.
inline KvPageLayout FullCacheLayout(const KvPageLayout& layout) { return layout.With(layout.type); }

/// What of a request decides what it takes.
struct AdmissionRequest {
  std::optional<Size> size{};  // absent: the plan's
  int64_t prompt_tokens = 0;
  int64_t max_tokens = 0;                  // rows that decoding may add; 0: none
  int64_t growth_cap = 0;                  // 0: a layer grows with the output
  absl::Span<const int64_t> base_rows{};   // one a layer: a context's; empty: none. Over a context
                                           // every row of the prompt is kept.
  absl::Span<const KvTypes> base_types{};  // one a layer, where base_rows are: what the context
                                           // stores, and so every request over it.
  // Not null: all rows of the prompt are kept besides, in every layer, as this layout stores them
  // (Score with a reference).
  const KvPageLayout* full_cache = nullptr;
};

/// What a request reserves before it starts.
struct Admission {
  LayerBudgets budgets;               // of the prompt's own tokens
  std::vector<KvPageLayout> layouts;  // one a layer: how its rows are stored
  // What bounded growth compacts a layer back to, a context's rows included:
  // max(b_l, the plan's floor) + base rows.
  std::vector<int64_t> target_rows;
  // min(base + b_l + max_tokens, target + growth_cap): a context's rows included.
  std::vector<int64_t> capacity_rows;
  int64_t pages = 0;  // of all layers, a context's full pages excluded, a full cache's included

  bool operator==(const Admission&) const = default;
};

/// Rows and pages of a request under a plan. What `layout` stores does not count: layers store what
/// the plan says, or the context.
absl::StatusOr<Admission> PlanAdmission(const Plan& plan, const AdmissionRequest& request,
                                        const KvPageLayout& layout);

/// PlanAdmission, and TooLarge where an empty arena of `arena_pages` cannot hold it: the
/// message gives pages and bytes wanted and there, and the largest max_tokens, or else the longest
/// prompt, that would fit.
absl::StatusOr<Admission> AdmitOrExplain(const Plan& plan, const AdmissionRequest& request,
                                         const KvPageLayout& layout, int64_t arena_pages);

}  // namespace ripplekv
