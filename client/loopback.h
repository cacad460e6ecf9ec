#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace ripplekv {

// Whether what is sent to `host` stays on this machine: localhost, 127.0.0.0/8, ::1. Without
// brackets; other names are not looked up.
bool IsLoopbackHost(absl::string_view host);

// The same of a gRPC target: HOST:PORT, unix:PATH, dns:///HOST:PORT, ipv4: and ipv6: lists.
bool IsLoopbackTarget(absl::string_view target);

}  // namespace ripplekv
