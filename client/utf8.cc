#include "client/utf8.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ripplekv {
namespace {

// Length of the well-formed character at the start of `text`, 0 where there is none.
size_t CharacterLength(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  if (text.empty()) return 0;
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xC2 && first <= 0xDF   ? 2
                        : first >= 0xE0 && first <= 0xEF ? 3
                        : first >= 0xF0 && first <= 0xF4 ? 4
                                                         : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  // Overlong forms, surrogates and what lies beyond U+10FFFF.
  if ((first == 0xE0 && byte(1) < 0xA0) || (first == 0xED && byte(1) > 0x9F) ||
      (first == 0xF0 && byte(1) < 0x90) || (first == 0xF4 && byte(1) > 0x8F)) {
    return 0;
  }
  return length;
}

// C0 and C1 controls and DEL.
bool IsControl(absl::string_view character) {
  const auto first = static_cast<uint8_t>(character[0]);
  return first < 0x20 || first == 0x7F ||
         (first == 0xC2 && character.size() == 2 && static_cast<uint8_t>(character[1]) < 0xA0);
}

}  // namespace

size_t FirstInvalidUtf8(absl::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t length = CharacterLength(text.substr(at));
    if (length == 0) return at;
    at += length;
  }
  return at;
}

int Columns(absl::string_view text) {
  int columns = 0;
  for (const char byte : text) columns += (static_cast<uint8_t>(byte) & 0xC0) != 0x80;
  return columns;
}

std::string TakeColumns(absl::string_view text, int columns) {
  size_t end = 0;
  while (end < text.size()) {
    const bool starts = (static_cast<uint8_t>(text[end]) & 0xC0) != 0x80;
    if (starts && columns-- <= 0) break;
    ++end;
  }
  return std::string(text.substr(0, end));
}

std::string WithoutControls(absl::string_view text) {
  std::string clean;
  while (!text.empty()) {
    const size_t length = CharacterLength(text);
    const absl::string_view character = text.substr(0, length == 0 ? 1 : length);
    const bool keep =
        length != 0 && (character == "\n" || character == "\t" || !IsControl(character));
    absl::StrAppend(&clean, keep ? character : "\uFFFD");
    text.remove_prefix(character.size());
  }
  return clean;
}

std::string Escaped(absl::string_view bytes) {
  std::string escaped;
  while (!bytes.empty()) {
    const size_t length = CharacterLength(bytes);
    const absl::string_view character = bytes.substr(0, length == 0 ? 1 : length);
    if (character == "\n") {
      escaped += "\\n";
    } else if (character == "\t") {
      escaped += "\\t";
    } else if (character == "\r") {
      escaped += "\\r";
    } else if (character == "\\" || character == "'") {
      absl::StrAppend(&escaped, "\\", character);
    } else if (length == 0 || IsControl(character)) {
      for (const char byte : character) {
        absl::StrAppendFormat(&escaped, "\\x%02X", static_cast<uint8_t>(byte));
      }
    } else {
      absl::StrAppend(&escaped, character);
    }
    bytes.remove_prefix(character.size());
  }
  return escaped;
}

}  // namespace ripplekv
