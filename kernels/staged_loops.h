#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>

#include "kernels/thread_pool.h"

namespace ripplekv {

/// Loops that feed one another, run as one region of a pool: threads take iterations in the order
/// in which the loops were added, and wait only where an iteration needs an earlier loop that
/// somebody is still at. So a thread that has nothing left to take from one loop goes on with the
/// next, where the end of a region would have it wait for the others.
class StagedLoops {
 public:
  static constexpr int kNothing = -1;

  /// A loop body(0), ..., body(n - 1); `needs` is an earlier loop all of which must be done before
  /// any iteration of this one, or kNothing. A loop of n = 0 is done when what it needs is. Returns
  /// the loop's number.
  int Add(int64_t n, int needs, std::function<void(int64_t)> body);

  /// Runs all loops, once. Bodies must not throw and must not use the pool.
  void Run(ThreadPool* pool);

 private:
  struct Loop {
    int64_t begin, end;  // among all iterations
    int needs;
    std::function<void(int64_t)> body;
    std::atomic<int64_t> done{0};

    bool empty() const { return begin == end; }
  };

  void Work();

  std::deque<Loop> loops_;
  int64_t iterations_ = 0;
  std::atomic<int64_t> next_{0};
};

}  // namespace ripplekv
