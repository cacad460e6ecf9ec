#pragma once

#include <atomic>

namespace ripplekv {

/// A submitted request, for its submitter. Dropping it does not cancel.
class RequestHandle {
 public:
  /// The request ends with CANCELLED within one layer or decode step, unless it ends first. Any
  /// thread, any time.
  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> cancelled_{false};
};

}  // namespace ripplekv
