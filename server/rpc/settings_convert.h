#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "calibration/policy/plan.h"
#include "calibration/settings.h"
#include "ripplekv/v1/profile.pb.h"
#include "server/rpc/plan_convert.h"

namespace ripplekv {

// Absent fields become those of `defaults`, absent parameters of a selector or an allocator those
// of `parameters`. Ranges are checked where the settings are used, but for selectors, allocators
// and types: INVALID_ARGUMENT names field (after "settings."), value and range.
absl::StatusOr<CalibrationSettings> SettingsFromProto(const v1::CalibrationSettings& proto,
                                                      const CalibrationSettings& defaults,
                                                      const PlanDefaults& parameters = {});

// What absent fields of a request mean.
struct SettingsDefaults {
  CalibrationSettings configured;
  PlanSpec plan;            // configured: its selector, allocator and types
  PlanDefaults parameters;  // of the selector and the allocator
  int64_t context_length = 0;
};

// Those that a request asks for: as above, but what is measured of the damage and of the sizes
// follows from the request and from the numbers of their examples in force (profile.proto).
absl::StatusOr<CalibrationSettings> RequestedSettings(const v1::CalibrationSettings& proto,
                                                      const SettingsDefaults& defaults);

// Every field is present that says something.
v1::CalibrationSettings SettingsToProto(const CalibrationSettings& settings);

}  // namespace ripplekv
