#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/policy/allocator.h"
#include "calibration/policy/budgets.h"
#include "calibration/policy/damage_table.h"
#include "calibration/policy/kv_shape.h"
#include "calibration/policy/selector.h"
#include "calibration/policy/size_curve.h"
#include "kernels/kv_type.h"

namespace ripplekv {

// What a plan is made of.
struct PlanSpec {
  int layers = 0;  // 1 to kMaxLayers
  Allocator allocator = UniformAllocator{};
  Size size = Retention{0.2};
  int64_t min_positions = 256;  // 0 to kMaxPromptTokens; see BudgetRequest
  SelectorSpec selector = SnapKv{};
  int sinks = 4;  // first positions of the prompt, always kept: 0 to 1024
  // s_l of the profile, one a layer, and the profile's id. Both empty where there is no profile
  // (or, for inline sensitivities, only the id); kept under a uniform allocator too, so that a
  // request may override it.
  std::vector<double> sensitivity;
  std::string profile_id;
  // Measured with the profile where calibration was asked to; else empty.
  std::vector<double> local_response;  // layer-local signal, one a layer
  DamageTable damage;
  SizeCurve size_curve;
  // What rows are stored in, and what they are.
  KvTypes kv_types = KvType::kBf16;
  KvShape kv_shape;
};

// What pools are sized from: turns a prompt length into the positions each layer keeps. Immutable;
// copies are cheap enough to hand one to each request.
class Plan {
 public:
  // INVALID_ARGUMENT naming field, value and range; FAILED_PRECONDITION when the allocator needs a
  // profile and there is none.
  static absl::StatusOr<Plan> Make(PlanSpec spec);

  const PlanSpec& spec() const { return spec_; }
  int layers() const { return spec_.layers; }
  const Allocator& allocator() const { return spec_.allocator; }
  const SelectorSpec& selector() const { return spec_.selector; }
  int sinks() const { return spec_.sinks; }
  // w_l, mean 1.
  const std::vector<double>& multipliers() const { return multipliers_; }
  // Empty when the plan does not come from a stored profile.
  const std::string& profile_id() const { return spec_.profile_id; }
  // Whether measured sensitivities decide the multipliers.
  bool from_profile() const { return NeedsSensitivity(spec_.allocator); }
  // Fewest positions a layer keeps: sinks + selector window + 1.
  int64_t floor() const { return spec_.sinks + SelectorWindow(spec_.selector) + 1; }

  // b_l and the types of rows for a prompt of 1 to kMaxPromptTokens tokens, by the plan's size or
  // the one given.
  absl::StatusOr<LayerBudgets> BudgetsFor(int64_t prompt_tokens,
                                          const std::optional<Size>& size_override = {}) const;

  // The same plan with another allocator or selector, for one request. Errors as of Make.
  absl::StatusOr<Plan> With(const std::optional<Allocator>& allocator,
                            const std::optional<SelectorSpec>& selector) const;

 private:
  Plan(PlanSpec spec, std::vector<double> multipliers)
      : spec_(std::move(spec)), multipliers_(std::move(multipliers)) {}

  PlanSpec spec_;
  std::vector<double> multipliers_;
};

}  // namespace ripplekv
