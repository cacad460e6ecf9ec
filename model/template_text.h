#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/template_value.h"

namespace ripplekv {

// Python's string functions on authored text, which keep who wrote what. Positions and lengths in
// Python are in code points; here they are in bytes unless said otherwise.

size_t CountCodePoints(std::string_view text);
// Byte offsets of the code points, and of the end.
std::vector<size_t> CodePointOffsets(std::string_view text);

struct StripSides {
  bool left, right;
};
// str.strip and its kin: takes off whitespace, or any of the characters in `characters`.
AuthoredText StripText(const AuthoredText& text, StripSides sides,
                       const std::optional<std::string>& characters);

// str.split: at each `separator`, or at runs of whitespace, which then also go from both ends. At
// most `limit` cuts (negative: any number). `separator` must not be empty.
std::vector<AuthoredText> SplitText(const AuthoredText& text,
                                    const std::optional<std::string>& separator, int64_t limit);

AuthoredText ReplaceText(const AuthoredText& text, std::string_view from, const AuthoredText& to);

// The text as a JSON string, as Python's json.dumps with ensure_ascii off.
void AppendJsonString(const AuthoredText& text, AuthoredText& out);

}  // namespace ripplekv
