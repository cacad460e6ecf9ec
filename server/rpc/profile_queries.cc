#include "server/rpc/profile_queries.h"

#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "calibration/canonical_digest.h"
#include "model/unicode.h"
#include "server/rpc/limits.h"
#include "server/rpc/profile_convert.h"
#include "server/rpc/status.h"

namespace ripplekv {
namespace {

constexpr char kProfileType[] = "ripplekv.v1.Profile";

absl::Status CheckId(absl::string_view field, const std::string& id) {
  if (IsSha256Hex(id)) return absl::OkStatus();
  return InvalidField(
      field, absl::StrCat("is '", Excerpt(id), "': must be 64 lower-case hexadecimal digits"));
}

std::optional<RunInfo> RunOf(ProfileStore& store, const std::string& id) {
  absl::StatusOr<RunInfo> run = store.GetRunInfo(id);
  if (run.ok()) return *std::move(run);
  return std::nullopt;
}

}  // namespace

absl::StatusOr<Profile> FindProfile(ProfileStore& store, absl::string_view field,
                                    const std::string& id) {
  if (absl::Status status = CheckId(field, id); !status.ok()) return status;
  absl::StatusOr<Profile> profile = store.Get(id);
  if (absl::IsNotFound(profile.status())) {
    return ResourceNotFound(kProfileType, id, absl::StrCat("no profile ", id, " is stored here"));
  }
  return profile;
}

absl::Status GetProfile(const CalibrationBackend& backend, const v1::GetProfileRequest& request,
                        v1::GetProfileResponse* response) {
  absl::StatusOr<Profile> profile;
  if (request.profile_id().empty()) {
    profile = backend.store->FindMatching(backend.plans->key());
    if (absl::IsNotFound(profile.status())) {
      const std::string id = ProfileId(backend.plans->key());
      return ResourceNotFound(
          kProfileType, id,
          absl::StrCat("no profile of the configured settings is stored yet (it would be ", id,
                       "); measure it with CalibrateModel"));
    }
  } else {
    profile = FindProfile(*backend.store, "profile_id", request.profile_id());
  }
  if (!profile.ok()) return profile.status();
  const std::string id = profile->id();
  *response->mutable_profile() = ProfileToProto(*profile, RunOf(*backend.store, id));
  response->set_in_force(backend.plans->InForce(id));
  return absl::OkStatus();
}

absl::Status ListProfiles(const CalibrationBackend& backend, const v1::ListProfilesRequest& request,
                          v1::ListProfilesResponse* response) {
  if (request.page_size() < 0 || request.page_size() > kMaxPageSize) {
    return InvalidField("page_size",
                        absl::StrCat("is ", request.page_size(), ": must be 0 to ", kMaxPageSize));
  }
  const std::string& after = request.page_token();  // the last id of the page before
  if (!after.empty() && !IsSha256Hex(after)) {
    return InvalidField("page_token",
                        absl::StrCat("is '", Excerpt(after),
                                     "': must be empty or a next_page_token of an earlier answer"));
  }
  const int size = request.page_size() == 0 ? kDefaultPageSize : request.page_size();
  absl::StatusOr<std::vector<Profile>> profiles = backend.store->List();
  if (!profiles.ok()) return profiles.status();
  for (const Profile& profile : *profiles) {
    const std::string id = profile.id();
    if (!after.empty() && id <= after) continue;
    if (response->profiles_size() == size) {
      response->set_next_page_token(response->profiles(size - 1).profile_id());
      break;
    }
    *response->add_profiles() = ProfileToProto(profile, RunOf(*backend.store, id));
  }
  return absl::OkStatus();
}

absl::Status DeleteProfile(const CalibrationBackend& backend,
                           const v1::DeleteProfileRequest& request) {
  if (absl::Status status = CheckId("profile_id", request.profile_id()); !status.ok())
    return status;
  const absl::Status status = backend.store->Delete(request.profile_id());
  if (absl::IsNotFound(status)) {
    return ResourceNotFound(kProfileType, request.profile_id(),
                            absl::StrCat("no profile ", request.profile_id(), " is stored here"));
  }
  return status;
}

}  // namespace ripplekv
