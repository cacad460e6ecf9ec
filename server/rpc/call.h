#pragma once

#include <grpcpp/server_context.h>

#include <chrono>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ripplekv {

// The id of a call: `field` where not empty, else metadata x-request-id, else x-correlation-id,
// else a new random one. INVALID_ARGUMENT: not 1 to kMaxRequestIdBytes printable ASCII characters
// without spaces.
absl::StatusOr<std::string> RequestIdOf(const grpc::CallbackServerContext& context,
                                        absl::string_view field);

// 128 random bits, 32 lower-case hexadecimal digits; not for what must not be guessed.
std::string RandomId();

// The metadata x-ripplekv-context of CreateContext, by which a proxy finds the context's replica
// again; empty where there is none, or it is not 1 to kMaxContextKeyBytes letters, digits, '-' and
// '_' and so cannot be part of an id.
std::string ContextKeyOf(const grpc::CallbackServerContext& context);

// When the caller stops waiting; unset for never.
std::optional<std::chrono::steady_clock::time_point> DeadlineOf(
    const grpc::CallbackServerContext& context);

}  // namespace ripplekv
