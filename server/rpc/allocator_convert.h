#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "calibration/policy/allocator.h"
#include "ripplekv/v1/profile.pb.h"

namespace ripplekv {

// Unset where the message says nothing; parameters that it leaves out are those of `defaults`.
// INVALID_ARGUMENT names field (after `path`, e.g. "kv.allocator."), value and range.
absl::StatusOr<std::optional<Allocator>> AllocatorFromProto(const v1::Allocator& proto,
                                                            const Allocators& defaults,
                                                            const std::string& path);

// INVALID_ARGUMENT naming the field (after `path`) where the allocator lists another number of
// values than there are layers.
absl::Status CheckOneALayer(const Allocator& allocator, int layers, const std::string& path);

// Every parameter is set.
v1::Allocator AllocatorToProto(const Allocator& allocator);

}  // namespace ripplekv
