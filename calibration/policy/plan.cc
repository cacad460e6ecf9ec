#include "calibration/policy/plan.h"

#include "absl/strings/str_cat.h"

namespace ripplekv {
namespace {

constexpr int kMaxSinks = 1024;

}  // namespace

absl::StatusOr<Plan> Plan::Make(PlanSpec spec) {
  if (spec.sensitivity.empty() && NeedsSensitivity(spec.allocator)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the ", AllocatorName(spec.allocator),
                     " allocator needs a sensitivity profile and there is none: calibrate the "
                     "model, or use the uniform allocator"));
  }
  if (absl::Status status = ValidateSize(spec.size); !status.ok()) return status;
  if (absl::Status status = ValidateSelector(spec.selector); !status.ok()) return status;
  if (spec.min_positions < 0 || spec.min_positions > kMaxPromptTokens) {
    return absl::InvalidArgumentError(absl::StrCat("min_positions is ", spec.min_positions,
                                                   ": must be between 0 and ", kMaxPromptTokens));
  }
  if (spec.sinks < 0 || spec.sinks > kMaxSinks) {
    return absl::InvalidArgumentError(
        absl::StrCat("sinks is ", spec.sinks, ": must be between 0 and ", kMaxSinks));
  }
  absl::StatusOr<std::vector<double>> multipliers =
      Multipliers(spec.allocator, spec.sensitivity, spec.layers);
  if (!multipliers.ok()) return multipliers.status();
  return Plan(std::move(spec), *std::move(multipliers));
}

absl::StatusOr<LayerBudgets> Plan::BudgetsFor(int64_t prompt_tokens,
                                              const std::optional<Size>& size_override) const {
  absl::StatusOr<LayerBudgets> budgets = ShareBudget({.prompt_tokens = prompt_tokens,
                                                      .size = size_override.value_or(spec_.size),
                                                      .min_positions = spec_.min_positions,
                                                      .floor = floor()},
                                                     multipliers_);
  if (!budgets.ok()) return budgets.status();
  budgets->types.assign(budgets->layer.size(), spec_.kv_types);
  budgets->bytes = budgets->total * spec_.kv_shape.RowBytes(spec_.kv_types);
  return budgets;
}

absl::StatusOr<Plan> Plan::With(const std::optional<Allocator>& allocator,
                                const std::optional<SelectorSpec>& selector) const {
  PlanSpec spec = spec_;
  if (allocator.has_value()) spec.allocator = *allocator;
  if (selector.has_value()) spec.selector = *selector;
  return Make(std::move(spec));
}

}  // namespace ripplekv
