#include "server/engine/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace ripplekv {

StopMatcher::Result StopMatcher::Push(std::string_view piece, bool may_stop) {
  pending_ += piece;
  Result result;
  if (may_stop) {
    size_t best_end = std::string::npos;
    size_t best_begin = 0;
    for (size_t i = 0; i < stops_.size(); ++i) {
      const size_t begin = pending_.find(stops_[i]);
      if (begin == std::string::npos) continue;
      const size_t end = begin + stops_[i].size();
      if (end < best_end || (end == best_end && begin < best_begin)) {
        best_end = end;
        best_begin = begin;
        result.matched = static_cast<int>(i);
      }
    }
    if (result.matched >= 0) {
      result.text = pending_.substr(0, best_begin);
      pending_.clear();
      return result;
    }
  }
  const size_t released = pending_.size() - HeldBytes();
  result.text = pending_.substr(0, released);
  pending_.erase(0, released);
  return result;
}

std::string StopMatcher::Flush() { return std::exchange(pending_, {}); }

size_t StopMatcher::HeldBytes() const {
  size_t held = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, pending_.size()); n > held; --n) {
      if (pending_.compare(pending_.size() - n, n, stop, 0, n) == 0) {
        held = n;
        break;
      }
    }
  }
  return held;
}

}  // namespace ripplekv
