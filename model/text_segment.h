#pragma once

#include <string>

namespace ripplekv {

// A part of a prompt and who wrote it. Control tokens are recognised only in text that is not from
// a user.
struct TextSegment {
  std::string text;  // UTF-8
  bool from_user = false;

  friend bool operator==(const TextSegment&, const TextSegment&) = default;
};

}  // namespace ripplekv
