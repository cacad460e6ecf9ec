#include "server/job_thread.h"

#include <utility>

namespace ripplekv {

JobThread::JobThread() : thread_([this] { Run(); }) {}

JobThread::~JobThread() { Shutdown(); }

absl::Status JobThread::Submit(std::shared_ptr<BackgroundJob> job) {
  const std::lock_guard lock(mutex_);
  if (stopped_) return absl::UnavailableError("the server is shutting down");
  jobs_.push_back(std::move(job));
  changed_.notify_one();
  return absl::OkStatus();
}

void JobThread::Shutdown() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void JobThread::Run() {
  for (;;) {
    std::shared_ptr<BackgroundJob> job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopped_ || !jobs_.empty(); });
      if (stopped_) break;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    // A failed job has told its listeners.
    while (!job->done() && job->Step().ok()) {
      const std::lock_guard lock(mutex_);
      if (stopped_) break;
    }
  }
  // Jobs end on the thread that ran them, and tell listeners: not under the lock.
  std::deque<std::shared_ptr<BackgroundJob>> left;
  {
    const std::lock_guard lock(mutex_);
    left.swap(jobs_);
  }
}

}  // namespace ripplekv
