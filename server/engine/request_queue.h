#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "calibration/background_job.h"
#include "calibration/policy/plan.h"
#include "server/engine/admission.h"
#include "server/engine/request.h"
#include "server/engine/request_handle.h"

namespace ripplekv {

/// An accepted request on its way through the engine.
struct QueuedRequest {
  GenerateRequest request;
  std::shared_ptr<GenerationSink> sink;
  std::shared_ptr<const RequestHandle> handle;
  std::shared_ptr<const Plan>
      plan;  // in force when it was submitted, with the request's own parameters
  Admission admission;
  int32_t max_tokens = 0;
  Clock::time_point submitted;

  /// OK, or CANCELLED or DEADLINE_EXCEEDED.
  absl::Status Alive(Clock::time_point now) const {
    if (handle->cancelled()) return absl::CancelledError("the request was cancelled");
    if (request.deadline.has_value() && now >= *request.deadline) {
      return absl::DeadlineExceededError("the request's deadline has passed");
    }
    return absl::OkStatus();
  }
};

/// What other threads hand to the engine's thread: waiting requests, bounded, first come first
/// served, and background jobs. Thread-safe.
class RequestQueue {
 public:
  explicit RequestQueue(int capacity) : capacity_(static_cast<size_t>(capacity)) {}

  /// RESOURCE_EXHAUSTED, with the payload kRetryLater, when full; UNAVAILABLE when closed.
  absl::Status Push(std::unique_ptr<QueuedRequest> request);
  absl::Status PushJob(std::shared_ptr<BackgroundJob> job);

  /// Refuses what comes from now on.
  void Close();
  /// Close, and Wait returns at once from now on.
  void Stop();
  bool stopped() const;

  /// Blocks until there is a request, a new job, a Wake since the last Wait, or a stop.
  void Wait();
  void Wake();

  /// The request that waits longest, or null.
  std::unique_ptr<QueuedRequest> Pop();
  /// Takes out requests that are cancelled or past their deadline.
  std::vector<std::unique_ptr<QueuedRequest>> TakeDead(Clock::time_point now);
  std::vector<std::shared_ptr<BackgroundJob>> TakeJobs();
  int64_t waiting() const;

 private:
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<QueuedRequest>> requests_;
  std::vector<std::shared_ptr<BackgroundJob>> jobs_;
  bool woken_ = false;
  bool closed_ = false;
  bool stopped_ = false;
};

}  // namespace ripplekv
