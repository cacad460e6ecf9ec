#pragma once

#include <grpcpp/support/status.h>

#include <chrono>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ripplekv {

// google.rpc error details travel inside an absl::Status as payloads under their Any type URL.

// INVALID_ARGUMENT with BadRequest: "FIELD PROBLEM", e.g. InvalidField("prompt", "is empty: must be
// ...").
absl::Status InvalidField(absl::string_view field, absl::string_view problem);

// Where an INVALID_ARGUMENT message starts with the name of what is wrong ("eta is 11: must be
// ..."), puts `prefix` before it ("settings.eta is 11: ..."). Other statuses stay as they are.
absl::Status WithFieldPrefix(absl::string_view prefix, const absl::Status& status);

// Adds RetryInfo.
absl::Status WithRetryDelay(absl::Status status, std::chrono::milliseconds delay);

// NOT_FOUND with ResourceInfo.
absl::Status ResourceNotFound(absl::string_view type, absl::string_view name,
                              absl::string_view message);

// The same code, message and details for the wire. An INVALID_ARGUMENT without BadRequest whose
// message starts with a field's name gets one; a status that the engine marks as one that passes
// (kRetryLater) gets RetryInfo of kRetryDelay.
grpc::Status ToGrpcStatus(const absl::Status& status);

// Code and message.
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace ripplekv
