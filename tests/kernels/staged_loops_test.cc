#include "kernels/staged_loops.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace ripplekv {
namespace {

// Three stages of two pieces each, as a layer's: every iteration reads all that the stage before it
// wrote.
TEST(StagedLoopsTest, IterationsSeeTheWholeLoopThatTheyNeed) {
  for (int threads = 1; threads <= 4; ++threads) {
    ThreadPool pool(threads);
    for (int round = 0; round < 300; ++round) {
      std::vector<std::vector<int>> values(6, std::vector<int>(7));
      std::atomic<int> wrong = 0;
      StagedLoops loops;
      std::vector<int> last = {StagedLoops::kNothing, StagedLoops::kNothing};
      for (int stage = 0; stage < 3; ++stage) {
        for (int piece = 0; piece < 2; ++piece) {
          auto& to = values[static_cast<size_t>(2 * stage + piece)];
          const auto* from =
              stage == 0 ? nullptr : &values[static_cast<size_t>(2 * stage + piece - 2)];
          last[static_cast<size_t>(piece)] =
              loops.Add(7, last[static_cast<size_t>(piece)], [&to, from, &wrong, stage](int64_t i) {
                if (from != nullptr) {
                  for (int x : *from) wrong += x != stage;
                }
                ++to[static_cast<size_t>(i)];
                to[static_cast<size_t>(i)] += stage;
              });
        }
      }
      loops.Run(&pool);
      EXPECT_EQ(wrong, 0);
      for (size_t l = 0; l < 6; ++l) {
        EXPECT_EQ(values[l], std::vector<int>(7, static_cast<int>(l) / 2 + 1));
      }
    }
  }
}

// The last loop reads what the first one wrote, however many empty ones lie between.
TEST(StagedLoopsTest, EmptyLoopsPassOnWhatTheyNeed) {
  ThreadPool pool(2);
  for (int round = 0; round < 20; ++round) {
    StagedLoops loops;
    std::atomic<int> written = 0;
    std::atomic<int> wrong = 0;
    int last = loops.Add(2, StagedLoops::kNothing, [&](int64_t i) {
      if (i == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ++written;
    });
    for (int empty = 0; empty < 2; ++empty) last = loops.Add(0, last, [](int64_t) {});
    loops.Add(2, last, [&](int64_t) { wrong += written != 2; });
    loops.Run(&pool);
    EXPECT_EQ(wrong, 0);
  }
}

TEST(StagedLoopsTest, EmptyLoops) {
  ThreadPool pool(2);
  StagedLoops none;
  none.Run(&pool);
  StagedLoops loops;
  int runs = 0;
  const int empty = loops.Add(0, StagedLoops::kNothing, [&](int64_t) { ++runs; });
  loops.Add(1, empty, [&](int64_t) { ++runs; });
  loops.Run(&pool);
  EXPECT_EQ(runs, 1);
}

}  // namespace
}  // namespace ripplekv
