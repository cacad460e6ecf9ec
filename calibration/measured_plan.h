#pragma once

#include "absl/status/statusor.h"
#include "calibration/policy/kv_shape.h"
#include "calibration/policy/plan.h"
#include "calibration/policy/size_curve.h"
#include "calibration/profile.h"

namespace ripplekv {

// What a plan takes from a profile.
void TakeMeasurements(const Profile& profile, PlanSpec& spec);

// The profile's mean KL by size and the plan that it was measured under; empty where it has none.
SizeCurve SizeCurveOf(const Profile& profile);

// The plan under which the sizes of the profile's settings are measured: of its own measurements,
// for the model whose rows are of that shape. Prompts are compressed however short they are. Errors
// as of Plan::Make.
absl::StatusOr<Plan> SizePlan(const Profile& profile, const KvShape& shape);

}  // namespace ripplekv
