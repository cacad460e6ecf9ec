#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace ripplekv {

// The offset of the first byte that is not part of well-formed UTF-8; the length of the text where
// all of it is.
size_t FirstInvalidUtf8(absl::string_view text);

// Code points of UTF-8 text: its columns in a terminal, as long as none is wide or combining.
int Columns(absl::string_view text);

// The first `columns` code points.
std::string TakeColumns(absl::string_view text, int columns);

// Control characters except line feed and tab replaced by U+FFFD, so that generated text cannot
// steer a terminal.
std::string WithoutControls(absl::string_view text);

// Bytes as one readable line: printable characters as they are; line feed, tab, return, backslash
// and quotes by backslash; every other byte (also of broken UTF-8) as \xHH.
std::string Escaped(absl::string_view bytes);

}  // namespace ripplekv
