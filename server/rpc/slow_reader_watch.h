#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace ripplekv {

// A stream whose client may stop reading.
class WatchedStream {
 public:
  virtual ~WatchedStream() = default;
  // Ends the stream where a message has been on its way to the client since `oldest` or before.
  // Called on the watch's thread.
  virtual void DropIfStuck(std::chrono::steady_clock::time_point oldest) = 0;
};

// Looks at streams from time to time, on a thread of its own, so that one whose client takes
// nothing is dropped once a message has waited for the limit, or at most an eighth more.
// Thread-safe.
class SlowReaderWatch {
 public:
  // limit: above 0.
  explicit SlowReaderWatch(std::chrono::milliseconds limit);
  ~SlowReaderWatch();
  SlowReaderWatch(const SlowReaderWatch&) = delete;
  SlowReaderWatch& operator=(const SlowReaderWatch&) = delete;

  // Until the stream dies.
  void Add(std::weak_ptr<WatchedStream> stream);

  std::chrono::milliseconds limit() const { return limit_; }

 private:
  void Run();

  const std::chrono::milliseconds limit_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::vector<std::weak_ptr<WatchedStream>> streams_;
  std::thread thread_;
};

}  // namespace ripplekv
