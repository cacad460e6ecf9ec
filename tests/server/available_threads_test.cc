#include "server/available_threads.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

namespace ripplekv {
namespace {

TEST(ProcessorsOfCpuMax, RoundsUp) {
  EXPECT_EQ(ProcessorsOfCpuMax("200000 100000"), 2);
  EXPECT_EQ(ProcessorsOfCpuMax("150000 100000"), 2);
  EXPECT_EQ(ProcessorsOfCpuMax("10000 100000"), 1);
  EXPECT_EQ(ProcessorsOfCpuMax("100000 100000\n"), 1);
}

TEST(ProcessorsOfCpuMax, IsZeroWithoutALimit) {
  for (const char* text :
       {"max 100000", "-1 100000", "", " ", "100000", "0 100000", "1 0", "x y"}) {
    EXPECT_EQ(ProcessorsOfCpuMax(text), 0) << text;
  }
}

TEST(AvailableThreads, FollowsTheAffinityMask) {
  EXPECT_GE(AvailableThreads(), 1);
  int in_one = 0;
  std::thread([&] {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(sched_getcpu(), &set);
    ASSERT_EQ(sched_setaffinity(0, sizeof set, &set), 0);
    in_one = AvailableThreads();
  }).join();
  EXPECT_EQ(in_one, 1);
}

}  // namespace
}  // namespace ripplekv
