#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "calibration/settings.h"

namespace ripplekv {

// Cuts the settings' sizes.examples examples of size_example_tokens() tokens, whose last ones are
// the windows; a shorter prompt is what stands right before the same window.
//
// An example ends where a text ends, and each text ends one: in the order of the texts, beginning
// with the one after that of the last of MakeExamples' examples and then around, so that those on
// which damage is measured come last. A text that is shorter than an example has those before it in
// front of it, the last one before the first, as many as fill it. Where more examples are asked for
// than there are texts, each gives windows at even distances between its end and the end of its
// first shortest prompt and window, none of which overlap; a text that has no room for one more is
// passed over. INVALID_ARGUMENT with the numbers when the texts do not give enough.
absl::StatusOr<std::vector<std::vector<int32_t>>> MakeSizeExamples(
    absl::Span<const std::vector<int32_t>> tokenized_texts, const CalibrationSettings& settings);

}  // namespace ripplekv
