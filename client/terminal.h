#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace ripplekv {

// What may be written to an output stream.
struct Terminal {
  bool interactive = false;  // a terminal that shows what is written and can move its cursor
  bool utf8 = false;         // Unicode block characters may be used
  bool color = false;        // ANSI styles may be used
  int width = 80;            // columns, at least kMinWidth

  static constexpr int kMinWidth = 20;

  std::string Bold(absl::string_view text) const;
  std::string Dim(absl::string_view text) const;
  // Between items of one line: " · ", or " | " without UTF-8.
  absl::string_view separator() const { return utf8 ? " · " : " | "; }
  absl::string_view plus_minus() const { return utf8 ? "±" : "+-"; }
  absl::string_view times() const { return utf8 ? "×" : "x"; }
};

// The stream behind a file descriptor, by isatty, the window size (else COLUMNS, else 80), the
// character type of the locale (setlocale was called), TERM and NO_COLOR (no-color.org: set and not
// empty).
Terminal DetectTerminal(int file_descriptor);

}  // namespace ripplekv
