#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "calibration/policy/allocator.h"
#include "calibration/policy/budgets.h"
#include "calibration/policy/damage_curve.h"
#include "calibration/policy/damage_table.h"
#include "calibration/policy/kv_shape.h"
#include "calibration/policy/selector.h"
#include "calibration/policy/size_curve.h"
#include "kernels/kv_type.h"

namespace ripplekv {

// The own types (PlanSpec::kv_types) of plans that a server lets choose: the dearest of the
// choices.
inline constexpr KvTypes kDearestChosen = KvType::kInt8;

// What a plan is made of.
struct PlanSpec {
  int layers = 0;  // 1 to kMaxLayers
  Allocator allocator = UniformAllocator{};
  Size size = Retention{0.2};
  int64_t min_positions = 256;  // 0 to kMaxPromptTokens; see BudgetRequest
  SelectorSpec selector = SnapKv{};
  int sinks = 4;  // first positions of the prompt, always kept: 0 to 1024
  // What rows are stored in.
  KvTypes kv_types = KvType::kBf16;
  // The damage_curves allocator chooses each layer's types with its rows, from one budget in bytes:
  // kv_types or measured ones that take less. Says nothing under another allocator.
  bool choose_types = false;
  KvShape kv_shape;
  // s_l of the profile, one a layer, and the profile's id. Both empty where there is no profile
  // (or, for inline sensitivities, only the id); kept under a uniform allocator too, so that a
  // request may override it.
  std::vector<double> sensitivity;
  std::string profile_id;
  // Measured with the profile where calibration was asked to; else empty.
  std::vector<double> local_response;  // of the layer's own output, one a layer, >= 0
  DamageTable damage;
  SizeCurve size_curve;
};

// Everything of a spec that does not depend on measurements. INVALID_ARGUMENT naming field, value
// and range.
absl::Status ValidatePlan(const PlanSpec& spec);

// What pools are sized from: turns a prompt length into the positions each layer keeps. Immutable;
// copies are cheap enough to hand one to each request.
//
// Where the plan chooses types, every size means bytes: those that its rows would take in kv_types
// (a retention of 0.2: 20 % of the bytes of all rows in them), or total_bytes itself.
class Plan {
 public:
  // INVALID_ARGUMENT naming field, value and range; FAILED_PRECONDITION when the allocator needs a
  // measurement and there is none.
  static absl::StatusOr<Plan> Make(PlanSpec spec);

  const PlanSpec& spec() const { return spec_; }
  int layers() const { return spec_.layers; }
  const Allocator& allocator() const { return spec_.allocator; }
  const SelectorSpec& selector() const { return spec_.selector; }
  int sinks() const { return spec_.sinks; }
  // w_l, mean 1; empty where the shares depend on the prompt and the size (HasMultipliers).
  const std::vector<double>& multipliers() const { return multipliers_; }
  // Empty when the plan does not come from a stored profile.
  const std::string& profile_id() const { return spec_.profile_id; }
  // Whether a measurement decides the shares.
  bool from_profile() const { return NeededMeasurement(spec_.allocator) != Measurement::kNone; }
  // Whether it chooses the types of rows, layer by layer.
  bool chooses_types() const;
  // Fewest positions a layer keeps: sinks + selector window + 1.
  int64_t floor() const { return spec_.sinks + SelectorWindow(spec_.selector) + 1; }

  // b_l and the types of rows for a prompt of 1 to kMaxPromptTokens tokens, by the plan's size or
  // the one given. FAILED_PRECONDITION: a size that needs a measurement that is not there.
  absl::StatusOr<LayerBudgets> BudgetsFor(int64_t prompt_tokens,
                                          const std::optional<Size>& size_override = {}) const;

  // The same plan with another allocator or selector, or rows stored in other types, for one
  // request. Errors as of Make.
  absl::StatusOr<Plan> With(const std::optional<Allocator>& allocator,
                            const std::optional<SelectorSpec>& selector,
                            const std::optional<KvTypes>& kv_types = {}) const;

 private:
  explicit Plan(PlanSpec spec) : spec_(std::move(spec)) {}
  absl::StatusOr<Size> SizeFor(const TargetMeanKl& target, int64_t prompt_tokens) const;
  absl::StatusOr<LayerBudgets> ShareRows(const BudgetRequest& request) const;
  absl::StatusOr<LayerBudgets> ShareBytes(const BudgetRequest& request) const;

  PlanSpec spec_;
  std::vector<double> multipliers_;
  std::vector<DamageCurve> curves_;  // one a layer; damage_curves
};

}  // namespace ripplekv
