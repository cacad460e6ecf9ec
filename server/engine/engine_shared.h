#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "calibration/policy/plan.h"
#include "server/engine/context_registry.h"
#include "server/engine/engine_observer.h"
#include "server/engine/request_queue.h"

namespace ripplekv {

/// What submitting threads and the engine's thread both touch. Thread-safe.
class EngineShared {
 public:
  EngineShared(int max_queue, ContextRegistryOptions contexts, std::shared_ptr<const Plan> plan)
      : queue_(max_queue), contexts_(contexts, [this] { queue_.Wake(); }), plan_(std::move(plan)) {}

  RequestQueue& queue() { return queue_; }
  ContextRegistry& contexts() { return contexts_; }

  std::shared_ptr<const Plan> plan() const {
    const std::lock_guard lock(mutex_);
    return plan_;
  }
  void SetPlan(std::shared_ptr<const Plan> plan) {
    {
      const std::lock_guard lock(mutex_);
      plan_ = std::move(plan);
    }
    queue_.Wake();
  }

  EngineStats stats() const {
    const std::lock_guard lock(mutex_);
    return stats_;
  }
  void SetStats(EngineStats stats) {
    const std::lock_guard lock(mutex_);
    stats_ = std::move(stats);
  }

  /// Counts requests that were submitted and have not ended yet.
  void RequestAccepted() {
    const std::lock_guard lock(mutex_);
    ++accepted_;
  }
  void RequestEnded() {
    const std::lock_guard lock(mutex_);
    if (--accepted_ == 0) idle_.notify_all();
  }
  /// Until all accepted requests have ended. DEADLINE_EXCEEDED.
  absl::Status WaitUntilIdle(Clock::time_point deadline);

 private:
  RequestQueue queue_;
  ContextRegistry contexts_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable idle_;
  std::shared_ptr<const Plan> plan_;
  int64_t accepted_ = 0;
  EngineStats stats_;
};

}  // namespace ripplekv
