#include "server/backoff.h"

#include <gtest/gtest.h>

namespace ripplekv {
namespace {

using std::chrono::milliseconds;

TEST(BackoffTest, DoublesUpToTheLongest) {
  Backoff backoff(milliseconds(10), milliseconds(70));
  for (const int pause : {10, 20, 40, 70, 70, 70}) EXPECT_EQ(backoff.Next(), milliseconds(pause));
}

TEST(BackoffTest, NeverAboveTheLongest) {
  Backoff backoff(milliseconds(100), milliseconds(70));
  EXPECT_EQ(backoff.Next(), milliseconds(70));
  EXPECT_EQ(backoff.Next(), milliseconds(70));
}

}  // namespace
}  // namespace ripplekv
