#pragma once

#include <grpcpp/support/status.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ripplekv {

// What google.rpc's details say beside a status's code and message.
struct RpcErrorDetails {
  struct FieldViolation {
    std::string field;
    std::string description;
  };
  std::vector<FieldViolation> field_violations;  // BadRequest
  std::optional<double> retry_delay_seconds;     // RetryInfo
  std::string resource_type;                     // ResourceInfo
  std::string resource_name;
  std::string request_id;  // RequestInfo
};

// A finished call's status: same code and message; the details of its google.rpc.Status (where that
// can be parsed) as payloads under their type URLs, and `request_id`, where not empty, as a
// RequestInfo unless the server sent one.
absl::Status FromRpc(const grpc::Status& status, absl::string_view request_id);

// What FromRpc attached.
RpcErrorDetails DetailsOf(const absl::Status& status);

// For people: "CODE: message", then a line for each field violation the message does not already
// say, the retry delay and the request id. No final newline.
std::string ErrorText(const absl::Status& status);

// For programs, one line:
// {"error":{"code":"INVALID_ARGUMENT","message":...,"field_violations":[{"field","description"}],
// "retry_delay_seconds":...,"resource_type","resource_name","request_id"}}; what is absent is left
// out.
std::string ErrorJson(const absl::Status& status);

}  // namespace ripplekv
