#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/kv_type.h"
#include "ripplekv/v1/profile.pb.h"

namespace ripplekv {

v1::KvType KvTypeToProto(KvType type);
// Null where it is unspecified. INVALID_ARGUMENT names the field and what is allowed.
absl::StatusOr<std::optional<KvType>> KvTypeFromProto(v1::KvType proto, const std::string& field);

}  // namespace ripplekv
