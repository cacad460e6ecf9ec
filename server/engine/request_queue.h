#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "calibration/background_job.h"
#include "server/engine/queued_request.h"

namespace ripplekv {

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
  /// Whether it was closed or stopped.
  bool closed() const;

  /// Blocks until a request or a job was added or Wake was called since the last Wait, or a stop;
  /// at most until the time given.
  void Wait(std::optional<Clock::time_point> until = std::nullopt);
  void Wake();

  /// The waiting requests, the one that waits longest first. Valid until the caller itself takes
  /// one out: only one thread may do so.
  std::vector<const QueuedRequest*> Waiting() const;
  /// Takes out the request at this place.
  std::unique_ptr<QueuedRequest> Take(size_t index);
  /// Takes out requests that are cancelled, past their deadline or waiting for too long.
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
