#pragma once

#include <algorithm>
#include <chrono>

namespace ripplekv {

// The pauses between tries of something that fails: `first`, then each twice the one before, up to
// `longest`.
class Backoff {
 public:
  Backoff(std::chrono::milliseconds first, std::chrono::milliseconds longest)
      : next_(first), longest_(longest) {}

  std::chrono::milliseconds Next() {
    const std::chrono::milliseconds pause = std::min(next_, longest_);
    next_ = std::min(pause * 2, longest_);
    return pause;
  }

 private:
  std::chrono::milliseconds next_;
  std::chrono::milliseconds longest_;
};

}  // namespace ripplekv
