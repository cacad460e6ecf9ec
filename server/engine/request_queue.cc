#include "server/engine/request_queue.h"

#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace ripplekv {
namespace {

absl::Status Closed() { return absl::UnavailableError("the server is shutting down"); }

}  // namespace

absl::Status RequestQueue::Push(std::unique_ptr<QueuedRequest> request) {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return Closed();
    if (requests_.size() >= capacity_) {
      absl::Status full = absl::ResourceExhaustedError(absl::StrCat(
          requests_.size(), " requests wait already (--max-queue ", capacity_, "): retry later"));
      full.SetPayload(kRetryLater, absl::Cord());
      return full;
    }
    requests_.push_back(std::move(request));
    woken_ = true;
  }
  changed_.notify_one();
  return absl::OkStatus();
}

absl::Status RequestQueue::PushJob(std::shared_ptr<BackgroundJob> job) {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return Closed();
    jobs_.push_back(std::move(job));
    woken_ = true;
  }
  changed_.notify_one();
  return absl::OkStatus();
}

void RequestQueue::Close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    woken_ = true;
  }
  changed_.notify_one();
}

void RequestQueue::Stop() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    stopped_ = true;
  }
  changed_.notify_one();
}

bool RequestQueue::closed() const {
  std::lock_guard lock(mutex_);
  return closed_;
}

bool RequestQueue::stopped() const {
  std::lock_guard lock(mutex_);
  return stopped_;
}

void RequestQueue::Wait(std::optional<Clock::time_point> until) {
  std::unique_lock lock(mutex_);
  const auto something = [this] { return stopped_ || woken_; };
  if (until.has_value()) {
    changed_.wait_until(lock, *until, something);
  } else {
    changed_.wait(lock, something);
  }
  woken_ = false;
}

void RequestQueue::Wake() {
  {
    std::lock_guard lock(mutex_);
    woken_ = true;
  }
  changed_.notify_one();
}

std::vector<const QueuedRequest*> RequestQueue::Waiting() const {
  std::lock_guard lock(mutex_);
  std::vector<const QueuedRequest*> waiting;
  waiting.reserve(requests_.size());
  for (const auto& request : requests_) waiting.push_back(request.get());
  return waiting;
}

std::unique_ptr<QueuedRequest> RequestQueue::Take(size_t index) {
  std::lock_guard lock(mutex_);
  const auto it = requests_.begin() + static_cast<std::ptrdiff_t>(index);
  std::unique_ptr<QueuedRequest> request = std::move(*it);
  requests_.erase(it);
  return request;
}

std::vector<std::unique_ptr<QueuedRequest>> RequestQueue::TakeDead(Clock::time_point now) {
  std::vector<std::unique_ptr<QueuedRequest>> dead;
  std::lock_guard lock(mutex_);
  for (auto it = requests_.begin(); it != requests_.end();) {
    if ((*it)->MayWait(now).ok()) {
      ++it;
    } else {
      dead.push_back(std::move(*it));
      it = requests_.erase(it);
    }
  }
  return dead;
}

std::vector<std::shared_ptr<BackgroundJob>> RequestQueue::TakeJobs() {
  std::lock_guard lock(mutex_);
  return std::exchange(jobs_, {});
}

int64_t RequestQueue::waiting() const {
  std::lock_guard lock(mutex_);
  return static_cast<int64_t>(requests_.size());
}

}  // namespace ripplekv
