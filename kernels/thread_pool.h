#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace ripplekv {

/// Splits loops over a fixed set of threads: the caller and threads - 1 workers.
///
/// Workers spin for about 50 us after a region and then sleep. The caller never waits for a worker
/// that has not started: it takes over whatever is left, so a busy machine degrades to one thread.
/// Where a worker loses its processor amid a range, the caller sleeps until it is done: the worker
/// gets the caller's processor then.
///
/// Workers stay off the processor that the caller runs on, where more than one is allowed when the
/// pool is made: kernels that pack threads onto few processors as long as these seem idle would
/// have a worker wait for the caller's, and it never seems busy then.
/// One thread at a time may call ParallelFor; bodies must not throw and must not call ParallelFor
/// of the same pool.
class ThreadPool {
 public:
  /// threads >= 1 counts the caller. Smaller values mean 1.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  /// Calls f(begin, end) on disjoint ranges that cover [0, n), each at most `grain` long (one call
  /// of the whole range where n <= grain or threads() == 1). Which thread runs a range is not
  /// fixed: results must not depend on it.
  template <typename F>
  void ParallelFor(int64_t n, int64_t grain, F&& f) {
    if (n <= 0) return;
    if (threads_ == 1 || n <= grain) {
      f(int64_t{0}, n);
      return;
    }
    using Body = std::remove_reference_t<F>;
    Run(
        n, grain,
        [](void* body, int64_t begin, int64_t end) { (*static_cast<Body*>(body))(begin, end); },
        const_cast<void*>(static_cast<const void*>(&f)));
  }

 private:
  using Function = void (*)(void* body, int64_t begin, int64_t end);

  // One thread's share of a region; others take from it when theirs is empty.
  struct alignas(64) Share {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };

  void Run(int64_t n, int64_t grain, Function function, void* body);
  void Work(int own);
  void WorkerLoop(int own);
  bool Empty() const;
  void AwaitWorkers();
  /// Workers may run on all processors that were allowed but `processor`; -1: on all.
  void KeepOff(int processor);

  const int threads_;
  // Of the running region. Written only while no worker is inside.
  Function function_ = nullptr;
  void* body_ = nullptr;
  int64_t grain_ = 1;
  std::unique_ptr<Share[]> shares_;

  // Region number << 16 | open << 15 | workers inside.
  alignas(64) std::atomic<uint64_t> gate_{0};
  // What sleeping workers wait on: changes with every region.
  alignas(64) std::atomic<uint32_t> bell_{0};
  std::atomic<int> sleepers_{0};
  // A caller sleeps on `left_` until the last worker has left the region.
  std::atomic<bool> caller_sleeps_{false};
  std::atomic<uint32_t> left_{0};
  std::atomic<bool> stop_{false};
  std::vector<int> processors_;  // allowed
  int kept_off_ = -1;
  std::vector<std::thread> workers_;
};

}  // namespace ripplekv
