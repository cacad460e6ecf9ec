#pragma once

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace ripplekv {

/// Payload of a FAILED_PRECONDITION that no waiting helps: this server can never hold the request.
inline constexpr char kTooLarge[] = "ripplekv/too-large";

/// Of that kind. Not RESOURCE_EXHAUSTED, which clients and proxies try again.
inline absl::Status TooLarge(absl::string_view message) {
  absl::Status status = absl::FailedPreconditionError(message);
  status.SetPayload(kTooLarge, absl::Cord());
  return status;
}

}  // namespace ripplekv
