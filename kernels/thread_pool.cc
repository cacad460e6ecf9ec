#include "kernels/thread_pool.h"

#include <algorithm>
#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace ripplekv {
namespace {

constexpr auto kSpin = std::chrono::microseconds(50);
constexpr uint64_t kOpen = uint64_t{1} << 15;
constexpr uint64_t kInside = kOpen - 1;
constexpr int kRegionShift = 16;

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

/// Spins until done() or about kSpin has passed; whether done.
template <typename Done>
bool SpinUntil(const Done& done) {
  for (int i = 0; i < 64; ++i) {
    if (done()) return true;
    Pause();
  }
  const auto until = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < until);
  return done();
}

/// The processors that the calling thread may run on; empty where the system does not tell.
std::vector<int> AllowedProcessors() {
  std::vector<int> allowed;
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return allowed;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) allowed.push_back(i);
  }
#endif
  return allowed;
}

/// The processor that the calling thread runs on, -1 if unknown.
int Processor() {
#if defined(__linux__)
  return sched_getcpu();
#else
  return -1;
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads)
    : threads_(std::clamp(threads, 1, 1024)),
      shares_(std::make_unique<Share[]>(static_cast<size_t>(threads_))),
      processors_(AllowedProcessors()) {
  workers_.reserve(static_cast<size_t>(threads_ - 1));
  for (int i = 1; i < threads_; ++i) workers_.emplace_back([this, i] { WorkerLoop(i); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  bell_.fetch_add(1);
  bell_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Run(int64_t n, int64_t grain, Function function, void* body) {
  grain = std::max<int64_t>(grain, 1);
  function_ = function;
  body_ = body;
  grain_ = grain;
  // Contiguous shares of whole grains.
  const int64_t grains = (n + grain - 1) / grain;
  for (int i = 0; i < threads_; ++i) {
    shares_[i].next.store(std::min(n, grains * i / threads_ * grain), std::memory_order_relaxed);
    shares_[i].end = std::min(n, grains * (i + 1) / threads_ * grain);
  }
  if (const int processor = Processor(); processor != kept_off_) KeepOff(processor);
  const uint64_t region = (gate_.load(std::memory_order_relaxed) >> kRegionShift) + 1;
  gate_.store(region << kRegionShift | kOpen, std::memory_order_release);
  // Sequentially consistent with a worker's going to sleep: one of the two sees the other.
  bell_.fetch_add(1);
  if (sleepers_.load() > 0) bell_.notify_all();

  Work(0);
  // Every range is taken now. Let nobody in any more and wait for those inside.
  gate_.fetch_and(~kOpen, std::memory_order_relaxed);
  AwaitWorkers();
}

void ThreadPool::KeepOff(int processor) {
  kept_off_ = processor;
  if (processors_.size() < 2) return;
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int allowed : processors_) {
    if (allowed != processor) CPU_SET(allowed, &set);
  }
  // Where this is forbidden, workers run wherever the system has them run.
  for (std::thread& worker : workers_) {
    pthread_setaffinity_np(worker.native_handle(), sizeof set, &set);
  }
#endif
}

bool ThreadPool::Empty() const { return (gate_.load(std::memory_order_acquire) & kInside) == 0; }

void ThreadPool::AwaitWorkers() {
  if (SpinUntil([this] { return Empty(); })) return;
  KeepOff(-1);
  caller_sleeps_.store(true);
  for (;;) {
    const uint32_t seen = left_.load();
    // Sequentially consistent with a worker's leaving: one of the two sees the other.
    if ((gate_.load() & kInside) == 0) break;
    left_.wait(seen);
  }
  caller_sleeps_.store(false);
}

void ThreadPool::Work(int own) {
  for (int i = 0; i < threads_; ++i) {
    Share& share = shares_[(own + i) % threads_];
    while (share.next.load(std::memory_order_relaxed) < share.end) {
      const int64_t begin = share.next.fetch_add(grain_, std::memory_order_relaxed);
      if (begin >= share.end) break;
      function_(body_, begin, std::min(begin + grain_, share.end));
    }
  }
}

void ThreadPool::WorkerLoop(int own) {
  uint32_t heard = 0;
  uint64_t last_region = 0;
  while (true) {
    const auto rung = [this, heard] { return bell_.load(std::memory_order_acquire) != heard; };
    if (!SpinUntil(rung)) {
      sleepers_.fetch_add(1);
      while (bell_.load() == heard) bell_.wait(heard);
      sleepers_.fetch_sub(1);
    }
    heard = bell_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_acquire)) return;

    uint64_t gate = gate_.load(std::memory_order_relaxed);
    while ((gate & kOpen) != 0 && gate >> kRegionShift != last_region) {
      if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire,
                                      std::memory_order_relaxed)) {
        last_region = gate >> kRegionShift;
        Work(own);
        gate_.fetch_sub(1);
        if (caller_sleeps_.load()) {
          left_.fetch_add(1);
          left_.notify_one();
        }
        break;
      }
    }
  }
}

}  // namespace ripplekv
