#include "server/rpc/slow_reader_watch.h"

#include <algorithm>
#include <utility>

namespace ripplekv {

SlowReaderWatch::SlowReaderWatch(std::chrono::milliseconds limit)
    : limit_(limit), thread_([this] { Run(); }) {}

SlowReaderWatch::~SlowReaderWatch() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void SlowReaderWatch::Add(std::weak_ptr<WatchedStream> stream) {
  const std::lock_guard lock(mutex_);
  streams_.push_back(std::move(stream));
}

void SlowReaderWatch::Run() {
  const std::chrono::milliseconds pause = std::max(limit_ / 8, std::chrono::milliseconds(1));
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, pause, [this] { return stopping_; })) {
    std::erase_if(streams_, [](const auto& stream) { return stream.expired(); });
    const std::vector<std::weak_ptr<WatchedStream>> streams = streams_;
    lock.unlock();
    const auto oldest = std::chrono::steady_clock::now() - limit_;
    for (const auto& weak : streams) {
      if (const auto stream = weak.lock()) stream->DropIfStuck(oldest);
    }
    lock.lock();
  }
}

}  // namespace ripplekv
