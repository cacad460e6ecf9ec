#include "client/byte_size.h"

#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace ripplekv {
namespace {

struct Unit {
  absl::string_view name;
  int shift;
};
constexpr Unit kUnits[] = {{"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}, {"B", 0}};

}  // namespace

absl::StatusOr<int64_t> ParseByteSize(absl::string_view text) {
  const auto error = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' ", why,
                     ": a size is a whole number with B, KiB, MiB, GiB or TiB, e.g. 256MiB"));
  };
  const absl::string_view trimmed = absl::StripAsciiWhitespace(text);
  size_t digits = 0;
  while (digits < trimmed.size() && absl::ascii_isdigit(trimmed[digits])) ++digits;
  if (digits == 0) return error("has no number");
  const absl::string_view unit = absl::StripAsciiWhitespace(trimmed.substr(digits));
  int shift = unit.empty() ? 0 : -1;
  for (const Unit& known : kUnits) {
    if (absl::EqualsIgnoreCase(unit, known.name)) shift = known.shift;
  }
  if (shift < 0) return error("has an unknown unit");
  int64_t number = 0;
  if (!absl::SimpleAtoi(trimmed.substr(0, digits), &number) ||
      number > std::numeric_limits<int64_t>::max() >> shift) {
    return error("is too large");
  }
  return number << shift;
}

std::string FormatByteSize(int64_t bytes) {
  for (const Unit& unit : kUnits) {
    const int64_t size = int64_t{1} << unit.shift;
    if (bytes != 0 && bytes % size == 0) return absl::StrCat(bytes / size, unit.name);
  }
  return absl::StrCat(bytes, "B");
}

}  // namespace ripplekv
