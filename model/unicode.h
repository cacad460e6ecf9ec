#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ripplekv {

// One step of reading UTF-8. Well-formed means Unicode 15, table 3-7: no overlong forms, no
// surrogates, nothing above U+10FFFF.
struct Utf8Step {
  enum class Kind {
    kCharacter,   // `size` bytes encode `code_point`
    kInvalid,     // `size` bytes (a maximal subpart, at least 1) can never become a character
    kIncomplete,  // the text ends inside a sequence that is well-formed so far; `size` bytes are
                  // left
  };
  Kind kind = Kind::kInvalid;
  size_t size = 0;
  char32_t code_point = 0;
};

// `text` must not be empty.
Utf8Step NextUtf8(std::string_view text);

// Offset of the first byte that is not well-formed UTF-8, or npos.
size_t FindInvalidUtf8(std::string_view text);

// Of a text from outside, for an error's message: its first 80 bytes at most, whole characters, with
// "..." where it goes on. Each maximal subpart of an ill-formed sequence becomes U+FFFD.
std::string Excerpt(std::string_view text);

void AppendUtf8(char32_t code_point, std::string& out);

// What Python's str.isspace calls whitespace (what str.strip, and so Jinja, takes off).
bool IsPythonSpace(char32_t code_point);

// Turns a stream of bytes into a stream of whole characters. Each maximal subpart of an ill-formed
// sequence becomes one U+FFFD, so the concatenated output does not depend on where the stream was
// cut.
class Utf8Stream {
 public:
  // The characters that `bytes` complete; up to three bytes wait for the next call.
  std::string Push(std::string_view bytes);
  // Ends the stream: U+FFFD if a sequence was left open, else nothing.
  std::string Flush();

 private:
  std::string pending_;
};

}  // namespace ripplekv
