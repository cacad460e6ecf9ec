#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace ripplekv {

// What a service works with: not there while the model is loading, no longer there while the server
// drains. Thread-safe.
template <typename T>
class Slot {
 public:
  void Set(std::shared_ptr<const T> value) {
    const std::lock_guard lock(mutex_);
    value_ = std::move(value);
  }

  void Close() {
    const std::lock_guard lock(mutex_);
    value_.reset();
    closed_ = true;
  }

  // UNAVAILABLE where it is not there, saying why.
  absl::StatusOr<std::shared_ptr<const T>> Get() const {
    const std::lock_guard lock(mutex_);
    if (value_ != nullptr) return value_;
    return absl::UnavailableError(
        closed_ ? "the server is shutting down"
                : "the model is loading: wait until grpc.health.v1 says SERVING");
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const T> value_;
  bool closed_ = false;
};

}  // namespace ripplekv
