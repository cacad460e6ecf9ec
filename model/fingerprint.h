#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace ripplekv {

// SHA-256 of the file's bytes (weights and metadata), 64 lower-case hexadecimal digits: the model's
// fingerprint. NOT_FOUND / PERMISSION_DENIED / INVALID_ARGUMENT (not a regular file) name the path.
absl::StatusOr<std::string> FileSha256(const std::string& path);

}  // namespace ripplekv
