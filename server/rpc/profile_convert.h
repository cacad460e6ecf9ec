#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "calibration/calibrator.h"
#include "calibration/profile.h"
#include "ripplekv/v1/calibration.pb.h"
#include "ripplekv/v1/profile.pb.h"

namespace ripplekv {

v1::ComputeType ComputeTypeToProto(const std::string& name);  // "fp32", "bf16"

v1::Profile ProfileToProto(const Profile& profile, const std::optional<RunInfo>& run);

// Exact inverse: the profile has the same content digest. DATA_LOSS: fields are missing or out of
// range, or the digests that the message carries are not those of its fields.
struct ProfileAndRun {
  Profile profile;
  std::optional<RunInfo> run;
};
absl::StatusOr<ProfileAndRun> ProfileFromProto(const v1::Profile& proto);

v1::CalibrationStarted StartedToProto(const CalibrationStarted& started);
v1::CalibrationProgress ProgressToProto(const CalibrationProgress& progress);
v1::Calibration CalibrationToProto(const CalibrationRecord& record);

}  // namespace ripplekv
