#pragma once

#include "absl/status/status.h"
#include "server/rpc/calibration_service.h"

namespace ripplekv {

// What GetProfile, ListProfiles and DeleteProfile answer. INVALID_ARGUMENT: not an id, page size or
// page token; NOT_FOUND with ResourceInfo.
absl::Status GetProfile(const CalibrationBackend& backend, const v1::GetProfileRequest& request,
                        v1::GetProfileResponse* response);
absl::Status ListProfiles(const CalibrationBackend& backend, const v1::ListProfilesRequest& request,
                          v1::ListProfilesResponse* response);
absl::Status DeleteProfile(const CalibrationBackend& backend,
                           const v1::DeleteProfileRequest& request);

// The stored profile of that id, with these errors.
absl::StatusOr<Profile> FindProfile(ProfileStore& store, absl::string_view field,
                                    const std::string& id);

}  // namespace ripplekv
