#include "server/engine/admission.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/too_large.h"
#include "server/kv/sequence_cache.h"

namespace ripplekv {
namespace {

// The largest n in [1, high] with fits(n), which holds up to some n and not beyond; 0 where there
// is none.
template <typename F>
int64_t LargestThatFits(int64_t high, F&& fits) {
  int64_t low = 0;
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    if (fits(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace

absl::StatusOr<Admission> PlanAdmission(const Plan& plan, const AdmissionRequest& request,
                                        const KvPageLayout& layout) {
  Admission admission;
  if (request.base_rows.empty()) {
    auto budgets = plan.BudgetsFor(request.prompt_tokens, request.size);
    if (!budgets.ok()) return budgets.status();
    admission.budgets = *std::move(budgets);
  } else {
    const auto layers = static_cast<size_t>(plan.layers());
    admission.budgets.layer.assign(layers, request.prompt_tokens);
    admission.budgets.types.assign(request.base_types.begin(), request.base_types.end());
    admission.budgets.total = plan.layers() * request.prompt_tokens;
    admission.budgets.requested = admission.budgets.total;
    admission.budgets.full = true;
  }
  for (size_t l = 0; l < admission.budgets.layer.size(); ++l) {
    const int64_t base = request.base_rows.empty() ? 0 : request.base_rows[l];
    const int64_t prompt = admission.budgets.layer[l];
    const int64_t target = base + std::max(prompt, plan.floor());
    int64_t capacity = base + prompt + request.max_tokens;
    if (request.growth_cap > 0) capacity = std::min(capacity, target + request.growth_cap);
    const KvPageLayout& stored =
        admission.layouts.emplace_back(layout.With(admission.budgets.types[l]));
    admission.target_rows.push_back(target);
    admission.capacity_rows.push_back(capacity);
    admission.pages += SequenceCache::OwnPagesFor(stored, base, capacity);
    if (request.full_cache != nullptr) {
      admission.pages += request.full_cache->PagesFor(request.prompt_tokens);
    }
  }
  return admission;
}

absl::StatusOr<Admission> AdmitOrExplain(const Plan& plan, const AdmissionRequest& request,
                                         const KvPageLayout& layout, int64_t arena_pages) {
  auto admission = PlanAdmission(plan, request, layout);
  if (!admission.ok() || admission->pages <= arena_pages) return admission;

  auto fits = [&](int64_t prompt, int64_t output) {
    AdmissionRequest other = request;
    other.prompt_tokens = prompt;
    other.max_tokens = output;
    const auto smaller = PlanAdmission(plan, other, layout);
    return smaller.ok() && smaller->pages <= arena_pages;
  };
  std::string way_out;
  const int64_t output = LargestThatFits(request.max_tokens,
                                         [&](int64_t n) { return fits(request.prompt_tokens, n); });
  if (output > 0) {
    way_out = absl::StrCat("max_tokens up to ", output, " would fit with this prompt");
  } else {
    const int64_t prompt = LargestThatFits(request.prompt_tokens,
                                           [&](int64_t n) { return fits(n, request.max_tokens); });
    way_out = prompt > 0 ? absl::StrCat("a prompt of up to ", prompt, " tokens would fit",
                                        request.max_tokens > 0 ? " with this max_tokens" : "")
                         : std::string("no prompt fits with this max_tokens");
    way_out += request.full_cache != nullptr
                   ? "; or score without reference or give the server more --kv-memory"
                   : "; or keep less (retention) or give the server more --kv-memory";
  }
  return TooLarge(
      absl::StrCat("the request needs ", admission->pages, " KV pages (",
                   admission->pages * static_cast<int64_t>(layout.page_bytes), " bytes) for ",
                   admission->budgets.total, " kept positions of ", request.prompt_tokens,
                   " prompt tokens over ", plan.layers(), " layers",
                   request.full_cache != nullptr ? ", the full cache beside them (reference)" : "",
                   " and max_tokens ", request.max_tokens, "; the arena has ", arena_pages, " (",
                   arena_pages * static_cast<int64_t>(layout.page_bytes), " bytes): ", way_out));
}

}  // namespace ripplekv
