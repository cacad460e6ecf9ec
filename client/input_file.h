#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace ripplekv {

// The whole of a file, or of standard input for "-". NOT_FOUND or FAILED_PRECONDITION name the file
// and the system's reason.
absl::StatusOr<std::string> ReadBytes(const std::string& path);

// The same as text: a byte order mark is dropped. INVALID_ARGUMENT where it is empty or not UTF-8
// (at which byte).
absl::StatusOr<std::string> ReadText(const std::string& path);

}  // namespace ripplekv
