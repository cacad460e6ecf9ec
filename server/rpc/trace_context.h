#pragma once

#include <grpcpp/server_context.h>

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace ripplekv {

// The trace id, 32 lower-case hexadecimal digits, of a traceparent header as W3C Trace Context has
// it; absent where the header is malformed or of the version that never is (ff). Versions after 00
// may go on after another dash.
std::optional<std::string> ParseTraceparent(absl::string_view header);

// The trace that the caller's metadata `traceparent` names, or a new random one where there is
// none or it is malformed.
std::string TraceIdOf(const grpc::CallbackServerContext& context);

}  // namespace ripplekv
