#pragma once

#include <string>
#include <vector>

#include "client/client.h"

namespace ripplekv {

// Every stored profile, page by page.
absl::StatusOr<std::vector<v1::Profile>> ListAllProfiles(const Client& client,
                                                         const CallOptions& options);

// The id that starts with `start`. A whole id is returned as it is, without a call. NOT_FOUND where
// no stored profile's id starts so, INVALID_ARGUMENT where several do.
absl::StatusOr<std::string> FindProfileId(const Client& client, const std::string& start,
                                          const CallOptions& options);

}  // namespace ripplekv
