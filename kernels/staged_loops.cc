#include "kernels/staged_loops.h"

#include <chrono>
#include <thread>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ripplekv {
namespace {

/// Until so many iterations are done. Whoever took them is at them, unless it has lost its
/// processor: then it shall have this one, which it only gets while this thread sleeps.
void Await(const std::atomic<int64_t>& done, int64_t wanted) {
  constexpr int kSpins = 2000;  // about 50 us
  for (int i = 0; done.load(std::memory_order_acquire) < wanted; ++i) {
    if (i >= kSpins) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      continue;
    }
#if defined(__x86_64__)
    _mm_pause();
#endif
  }
}

}  // namespace

int StagedLoops::Add(int64_t n, int needs, std::function<void(int64_t)> body) {
  if (needs != kNothing && loops_[static_cast<size_t>(needs)].empty()) {
    needs = loops_[static_cast<size_t>(needs)].needs;  // never an empty loop itself
  }
  loops_.emplace_back();
  Loop& loop = loops_.back();
  loop.begin = iterations_;
  loop.end = iterations_ += n;
  loop.needs = needs;
  loop.body = std::move(body);
  return static_cast<int>(loops_.size()) - 1;
}

void StagedLoops::Work() {
  auto loop = loops_.begin();
  for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < iterations_;) {
    while (i >= loop->end) ++loop;
    if (loop->needs != kNothing) {
      const Loop& needed = loops_[static_cast<size_t>(loop->needs)];
      Await(needed.done, needed.end - needed.begin);
    }
    loop->body(i - loop->begin);
    loop->done.fetch_add(1, std::memory_order_release);
  }
}

void StagedLoops::Run(ThreadPool* pool) {
  pool->ParallelFor(pool->threads(), 1, [this](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) Work();
  });
}

}  // namespace ripplekv
