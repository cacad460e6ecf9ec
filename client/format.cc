#include "client/format.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ripplekv {

std::string FormatCount(int64_t count) {
  const std::string digits = absl::StrCat(count);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    const size_t left = digits.size() - i;
    if (i > 0 && left % 3 == 0 && digits[i - 1] != '-') text += ',';
    text += digits[i];
  }
  return text;
}

std::string FormatBytes(int64_t bytes) {
  if (bytes < 1024 && bytes > -1024) return absl::StrCat(bytes, " B");
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double size = static_cast<double>(bytes) / 1024;
  int unit = 0;
  // 1023.95 would be written as 1024.0.
  while (std::abs(size) >= 1023.95 && unit < 5) {
    size /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.1f %s", size, kUnits[unit]);
}

std::string FormatPercent(double share) { return absl::StrFormat("%.1f %%", share * 100); }

std::string FormatSeconds(double seconds) {
  if (!(seconds >= 0) || std::isinf(seconds)) return absl::StrFormat("%g s", seconds);
  if (seconds < 0.9995) return absl::StrFormat("%.3f s", seconds);
  if (seconds < 9.995) return absl::StrFormat("%.2f s", seconds);
  if (seconds < 59.95) return absl::StrFormat("%.1f s", seconds);
  const auto whole = static_cast<int64_t>(std::llround(std::min(seconds, 1e15)));
  if (whole < 3600) return absl::StrFormat("%d min %02d s", whole / 60, whole % 60);
  return absl::StrFormat("%d h %02d min", whole / 3600, whole / 60 % 60);
}

std::string FormatClock(double seconds) {
  if (!(seconds >= 0) || std::isinf(seconds)) return "-";
  const auto whole = static_cast<int64_t>(std::llround(std::min(seconds, 1e15)));
  if (whole < 3600) return absl::StrFormat("%d:%02d", whole / 60, whole % 60);
  return absl::StrFormat("%d:%02d:%02d", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string FormatRate(int64_t tokens, double seconds) {
  if (tokens <= 0 || !(seconds > 0)) return "-";
  const double rate = static_cast<double>(tokens) / seconds;
  if (rate >= 99.95 && rate < 1e15) {
    return absl::StrCat(FormatCount(std::llround(rate)), " tokens/s");
  }
  return absl::StrFormat("%.1f tokens/s", rate);
}

std::string FormatNumber(double number, int digits) {
  return absl::StrFormat("%.*g", digits, number);
}

}  // namespace ripplekv
