#pragma once

#include <string>

namespace ripplekv {

// Whether `text` is well-formed UTF-8 (RFC 3629: no surrogates, no over-long forms, at most
// U+10FFFF).
bool IsValidUtf8(const std::string& text);

}  // namespace ripplekv
