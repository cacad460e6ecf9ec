#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ripplekv {

// Numbers between spaces, line feeds or commas, in brackets or not: "1 2 3", "[1, 2, 3]". At least
// one. INVALID_ARGUMENT names what is not a number, and which it is.
absl::StatusOr<std::vector<int32_t>> ParseTokenIds(absl::string_view text);

// Sensitivities s_l, one a layer: numbers as above, or the JSON of `ripplekv profile --json`.
// INVALID_ARGUMENT for what is not finite or below 0.
absl::StatusOr<std::vector<double>> ParseSensitivities(absl::string_view text);

}  // namespace ripplekv
