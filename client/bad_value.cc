#include "client/bad_value.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace ripplekv {

std::string DescribeBadValue(absl::string_view error_name, const std::string& said) {
  absl::string_view rest = said;
  // "Could not convert: --max-tokens = many"
  if (error_name == "ConversionError" && absl::ConsumePrefix(&rest, "Could not convert: ")) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(rest, absl::MaxSplits(" = ", 1));
    return absl::StrCat(parts.first, ": '", parts.second, "' is not a value that it takes");
  }
  // "--model: 1 required FILE missing"
  if (error_name == "ArgumentMismatch" && absl::EndsWith(said, " missing")) {
    return absl::StrCat(said.substr(0, said.find(':')), " needs a value");
  }
  return said;
}

}  // namespace ripplekv
