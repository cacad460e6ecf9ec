#include "server/engine/admission.h"

#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

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

absl::StatusOr<Admission> PlanAdmission(const Plan& plan, const std::optional<Size>& size,
                                        int64_t prompt_tokens, int64_t max_tokens,
                                        const KvPageLayout& layout) {
  auto budgets = plan.BudgetsFor(prompt_tokens, size);
  if (!budgets.ok()) return budgets.status();
  Admission admission;
  admission.budgets = *std::move(budgets);
  admission.capacity_rows.reserve(admission.budgets.layer.size());
  for (int64_t rows : admission.budgets.layer) {
    admission.capacity_rows.push_back(rows + max_tokens);
    admission.pages += layout.PagesFor(rows + max_tokens);
  }
  return admission;
}

absl::StatusOr<Admission> AdmitOrExplain(const Plan& plan, const std::optional<Size>& size,
                                         int64_t prompt_tokens, int64_t max_tokens,
                                         const KvPageLayout& layout, int64_t arena_pages) {
  auto admission = PlanAdmission(plan, size, prompt_tokens, max_tokens, layout);
  if (!admission.ok() || admission->pages <= arena_pages) return admission;

  auto fits = [&](int64_t prompt, int64_t output) {
    const auto other = PlanAdmission(plan, size, prompt, output, layout);
    return other.ok() && other->pages <= arena_pages;
  };
  std::string way_out;
  const int64_t output =
      LargestThatFits(max_tokens, [&](int64_t n) { return fits(prompt_tokens, n); });
  if (output > 0) {
    way_out = absl::StrCat("max_tokens up to ", output, " would fit with this prompt");
  } else {
    const int64_t prompt =
        LargestThatFits(prompt_tokens, [&](int64_t n) { return fits(n, max_tokens); });
    way_out = prompt > 0 ? absl::StrCat("a prompt of up to ", prompt,
                                        " tokens would fit with this max_tokens")
                         : std::string("no prompt fits with this max_tokens");
    way_out += "; or keep less (retention) or give the server more --kv-memory";
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "the request needs ", admission->pages, " KV pages (",
      admission->pages * static_cast<int64_t>(layout.page_bytes), " bytes) for ",
      admission->budgets.total, " kept positions of ", prompt_tokens, " prompt tokens over ",
      plan.layers(), " layers and max_tokens ", max_tokens, "; the arena has ", arena_pages, " (",
      arena_pages * static_cast<int64_t>(layout.page_bytes), " bytes): ", way_out));
}

}  // namespace ripplekv
