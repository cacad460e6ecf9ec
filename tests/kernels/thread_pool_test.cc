#include "kernels/thread_pool.h"

#include <gtest/gtest.h>

#if defined(__linux__)
#include <sched.h>
#endif

#include <atomic>
#include <chrono>
#include <set>
#include <thread>
#include <vector>

namespace ripplekv {
namespace {

TEST(ThreadPoolTest, CoversEveryIndexOnce) {
  for (int threads : {0, 1, 2, 3, 4, 7}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads < 1 ? 1 : threads);
    for (int64_t n : {0, 1, 2, 3, 5, 16, 100, 1001}) {
      for (int64_t grain : {0, 1, 2, 3, 7, 64, 5000}) {
        // Plain integers: the pool itself must order the writes before the return.
        std::vector<int> visits(static_cast<size_t>(n));
        std::atomic<int> too_long = 0;
        pool.ParallelFor(n, grain, [&](int64_t begin, int64_t end) {
          if (begin >= end ||
              (threads > 1 && n > grain && end - begin > std::max<int64_t>(grain, 1)))
            ++too_long;
          for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
        });
        EXPECT_EQ(too_long, 0);
        for (int v : visits)
          ASSERT_EQ(v, 1) << threads << " threads, n " << n << ", grain " << grain;
      }
    }
  }
}

TEST(ThreadPoolTest, SmallLoopsStayOnTheCaller) {
  ThreadPool pool(4);
  int calls = 0;
  pool.ParallelFor(8, 8, [&](int64_t begin, int64_t end) {
    ++calls;
    EXPECT_EQ(begin, 0);
    EXPECT_EQ(end, 8);
  });
  EXPECT_EQ(calls, 1);
}

TEST(ThreadPoolTest, WorkersTakePart) {
  ThreadPool pool(3);
  // Each body waits until three threads are inside at once: only so it ends.
  std::atomic<int> inside = 0;
  pool.ParallelFor(3, 1, [&](int64_t, int64_t) {
    ++inside;
    while (inside.load() < 3) std::this_thread::yield();
  });
  EXPECT_EQ(inside, 3);
}

#if defined(__linux__)
// Wherever the caller goes: a kernel may otherwise leave both on one processor.
TEST(ThreadPoolTest, WorkersStayOffTheCallersProcessor) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  if (CPU_COUNT(&allowed) < 2) GTEST_SKIP() << "one processor";
  ThreadPool pool(2);
  const std::thread::id caller = std::this_thread::get_id();
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (!CPU_ISSET(i, &allowed)) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(i, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    std::atomic<int> inside = 0;
    std::atomic<int> worker_on = -1;
    pool.ParallelFor(2, 1, [&](int64_t, int64_t) {
      if (std::this_thread::get_id() != caller) worker_on = sched_getcpu();
      ++inside;
      while (inside.load() < 2) std::this_thread::yield();
    });
    EXPECT_NE(worker_on, -1);
    EXPECT_NE(worker_on, i);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof allowed, &allowed), 0);
}
#endif

TEST(ThreadPoolTest, TheCallerTakesOverWhatIsLeft) {
  ThreadPool pool(2);
  // The worker is kept in one index; the caller must do all others, the worker's share included.
  std::atomic<int> done = 0;
  std::atomic<bool> worker_stuck = false;
  const auto caller = std::this_thread::get_id();
  pool.ParallelFor(100, 1, [&](int64_t, int64_t) {
    if (std::this_thread::get_id() != caller && !worker_stuck.exchange(true)) {
      while (done.load() < 99) std::this_thread::yield();
    }
    ++done;
  });
  EXPECT_EQ(done, 100);
}

TEST(ThreadPoolTest, TheCallerSleepsWhileAWorkerIsLate) {
  ThreadPool pool(3);
  const auto caller = std::this_thread::get_id();
  for (int region = 0; region < 200; ++region) {
    // Much longer than the caller spins, and less than that.
    const auto late = std::chrono::microseconds(region % 2 == 0 ? 300 + region : region / 4);
    std::atomic<int> done = 0;
    pool.ParallelFor(3, 1, [&](int64_t, int64_t) {
      if (std::this_thread::get_id() != caller) std::this_thread::sleep_for(late);
      ++done;
    });
    ASSERT_EQ(done, 3);
  }
}

TEST(ThreadPoolTest, ManyRegionsWithAndWithoutSleep) {
  ThreadPool pool(4);
  std::vector<int64_t> values(257);
  for (int region = 0; region < 5000; ++region) {
    pool.ParallelFor(257, 1 + region % 40, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) values[static_cast<size_t>(i)] += i + region;
    });
    // Long enough, now and then, that workers fall asleep: at all moments of falling asleep.
    if (region % 50 == 0) std::this_thread::sleep_for(std::chrono::microseconds(region % 400));
  }
  for (int64_t i = 0; i < 257; ++i) {
    EXPECT_EQ(values[static_cast<size_t>(i)], 5000 * i + 5000 * 4999 / 2);
  }
}

TEST(ThreadPoolTest, StopsWhileWorkersSpinAndWhileTheySleep) {
  for (int i = 0; i < 50; ++i) {
    ThreadPool pool(3);
    std::atomic<int64_t> sum = 0;
    pool.ParallelFor(10, 1, [&](int64_t begin, int64_t) { sum += begin; });
    EXPECT_EQ(sum, 45);
    if (i % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(20 * i));
  }
}

TEST(ThreadPoolTest, TwoPoolsFromTwoThreads) {
  const auto run = [](int64_t* total) {
    ThreadPool pool(2);
    for (int region = 0; region < 500; ++region) {
      std::atomic<int64_t> sum = 0;
      pool.ParallelFor(64, 4, [&](int64_t begin, int64_t end) { sum += end - begin; });
      *total += sum;
    }
  };
  int64_t a = 0, b = 0;
  std::thread other(run, &a);
  run(&b);
  other.join();
  EXPECT_EQ(a, 500 * 64);
  EXPECT_EQ(b, 500 * 64);
}

}  // namespace
}  // namespace ripplekv
