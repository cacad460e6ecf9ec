#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ripplekv {

/// Finds stop strings in text that comes piece by piece, and holds back what may be the beginning
/// of one. Where the text is cut into pieces does not change the result: the match that ends first
/// wins, of those the longest.
class StopMatcher {
 public:
  /// Non-empty strings.
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  struct Result {
    std::string text;  // what can no longer become part of a stop string
    int matched =
        -1;  // index of the stop string found; then `text` ends before it, and nothing may follow
  };
  /// `may_stop` false: strings that are completed by this piece do not count and are released
  /// (min_tokens).
  Result Push(std::string_view piece, bool may_stop);

  /// The end of the text without a match: what was held back.
  std::string Flush();

 private:
  // Bytes at the end of the pending text that begin a stop string.
  size_t HeldBytes() const;

  std::vector<std::string> stops_;
  std::string pending_;
};

}  // namespace ripplekv
