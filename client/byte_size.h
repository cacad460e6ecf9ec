#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ripplekv {

// Bytes from a whole number and a unit: "268435456", "1000 B", "256MiB". Units are B, KiB, MiB, GiB
// and TiB, in any case; none means bytes. INVALID_ARGUMENT quotes the text and says what is
// accepted.
absl::StatusOr<int64_t> ParseByteSize(absl::string_view text);

// With the largest unit that leaves a whole number: "256MiB", "1000B". ParseByteSize reads it back
// exactly.
std::string FormatByteSize(int64_t bytes);

}  // namespace ripplekv
