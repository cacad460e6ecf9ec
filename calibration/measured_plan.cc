#include "calibration/measured_plan.h"

#include <utility>

namespace ripplekv {

void TakeMeasurements(const Profile& profile, PlanSpec& spec) {
  spec.sensitivity = profile.sensitivity;
  spec.local_response = profile.local_response;
  spec.damage = profile.damage.table;
  spec.size_curve = SizeCurveOf(profile);
  spec.profile_id = profile.id();
}

SizeCurve SizeCurveOf(const Profile& profile) {
  SizeCurve curve;
  if (profile.sizes.mean_kl.empty()) return curve;
  const CalibrationSettings& settings = profile.key.settings;
  curve.allocator = settings.sizes.allocator;
  curve.selector = settings.selector;
  curve.sinks = settings.sinks;
  curve.kv_types = settings.sizes.kv_types;
  curve.prompt_tokens = settings.sizes.prompt_tokens;
  curve.retentions = settings.sizes.retentions;
  curve.mean_kl = profile.sizes.mean_kl;
  return curve;
}

absl::StatusOr<Plan> SizePlan(const Profile& profile, const KvShape& shape) {
  const CalibrationSettings& settings = profile.key.settings;
  PlanSpec spec;
  spec.layers = profile.layers;
  spec.allocator = settings.sizes.allocator;
  spec.min_positions = 0;
  spec.selector = settings.selector;
  spec.sinks = settings.sinks;
  spec.kv_types = settings.sizes.kv_types.value_or(kDearestChosen);
  spec.choose_types = !settings.sizes.kv_types.has_value();
  spec.kv_shape = shape;
  TakeMeasurements(profile, spec);
  return Plan::Make(std::move(spec));
}

}  // namespace ripplekv
