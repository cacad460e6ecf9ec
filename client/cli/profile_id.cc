#include "client/cli/profile_id.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace ripplekv {
namespace {

constexpr size_t kIdDigits = 64;

}  // namespace

absl::StatusOr<std::vector<v1::Profile>> ListAllProfiles(const Client& client,
                                                         const CallOptions& options) {
  std::vector<v1::Profile> profiles;
  v1::ListProfilesRequest request;
  do {
    absl::StatusOr<v1::ListProfilesResponse> page = client.ListProfiles(request, options);
    if (!page.ok()) return page.status();
    if (page->profiles().empty()) break;
    for (v1::Profile& profile : *page->mutable_profiles()) profiles.push_back(std::move(profile));
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  return profiles;
}

absl::StatusOr<std::string> FindProfileId(const Client& client, const std::string& start,
                                          const CallOptions& options) {
  if (start.size() >= kIdDigits) return start;
  const absl::StatusOr<std::vector<v1::Profile>> profiles = ListAllProfiles(client, options);
  if (!profiles.ok()) return profiles.status();
  std::string found;
  for (const v1::Profile& profile : *profiles) {
    if (!absl::StartsWith(profile.profile_id(), start)) continue;
    if (!found.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "profile id '", start, "' is the start of several: ", found, ", ", profile.profile_id()));
    }
    found = profile.profile_id();
  }
  if (found.empty()) {
    return absl::NotFoundError(absl::StrCat("no stored profile's id starts with '", start,
                                            "'; ripplekv profile list shows them"));
  }
  return found;
}

}  // namespace ripplekv
