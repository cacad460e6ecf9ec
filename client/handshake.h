#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace ripplekv {

// What it says about the server that a connection to it, by TLS or in plain text, ended with that
// message of gRPC's, and the way out; empty where nothing. gRPC has no codes for it.
std::string ExplainHandshake(bool tls, absl::string_view message);

}  // namespace ripplekv
