#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace ripplekv {

// What CLI11 says (`said`) in an error of this name, in plain words where it is about the value of
// an option: "--max-tokens: 'many' is not a value that it takes", "--model needs a value". Other
// texts come back as they are.
std::string DescribeBadValue(absl::string_view error_name, const std::string& said);

}  // namespace ripplekv
