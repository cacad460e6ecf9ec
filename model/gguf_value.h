#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "model/gguf.h"
#include "model/gguf_cursor.h"

namespace ripplekv {

// A metadata value of the format's value type number `type`. INVALID_ARGUMENT for what breaks the
// format, UNIMPLEMENTED for arrays of arrays and of more than 2^24 elements.
absl::StatusOr<GgufValue> ReadGgufValue(GgufCursor& cursor, uint32_t type);

}  // namespace ripplekv
