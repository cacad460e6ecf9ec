#pragma once

#include <cstdint>
#include <string>

namespace ripplekv {

// Numbers for people. All are short, none depends on the locale; NaN and infinities are written as
// such.

// "1,234,567"
std::string FormatCount(int64_t count);
// "512 B", "1.5 KiB", "94.5 MiB", "2.0 GiB"
std::string FormatBytes(int64_t bytes);
// A share of 1: "20.0 %"
std::string FormatPercent(double share);
// "0.012 s", "3.49 s", "42.0 s", "2 min 05 s", "1 h 02 min"
std::string FormatSeconds(double seconds);
// "0:42", "12:05", "1:02:09"
std::string FormatClock(double seconds);
// "1,234 tokens/s", "45.2 tokens/s"; "-" where there is no time or no token.
std::string FormatRate(int64_t tokens, double seconds);
// Up to `digits` significant digits: "0.0123", "1.5", "1e-06"
std::string FormatNumber(double number, int digits = 4);

}  // namespace ripplekv
