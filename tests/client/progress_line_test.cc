#include "client/progress_line.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "absl/strings/match.h"
#include "client/utf8.h"

namespace ripplekv {
namespace {

TEST(ProgressLineTest, SaysWhatIsDoneAndWhatIsLeft) {
  const ProgressState half = {.done = 12, .total = 24, .fraction = 0.5, .elapsed_seconds = 30};
  EXPECT_EQ(RenderProgress(half, {.interactive = true, .utf8 = true, .width = 80}),
            "calibrating ██████████████░░░░░░░░░░░░░░░ 12/24 examples  50 %  0:30, 0:30 left");
  EXPECT_EQ(RenderProgress(half, {.interactive = true, .utf8 = false, .width = 60}),
            "calibrating ####..... 12/24 examples  50 %  0:30, 0:30 left");
  EXPECT_EQ(RenderProgress(half, {.interactive = false, .utf8 = true, .width = 80}),
            "calibrating 12/24 examples  50 %  0:30, 0:30 left");
}

TEST(ProgressLineTest, TheTimeLeftFollowsTheFraction) {
  const ProgressState quarter = {.done = 6, .total = 24, .fraction = 0.25, .elapsed_seconds = 60};
  EXPECT_TRUE(absl::EndsWith(RenderProgress(quarter, {}), " 25 %  1:00, 3:00 left"));
  // Nothing is known at the start, and nothing is left at the end.
  EXPECT_TRUE(absl::EndsWith(RenderProgress({.total = 24, .fraction = 0, .elapsed_seconds = 2}, {}),
                             "  0 %  0:02"));
  EXPECT_TRUE(absl::EndsWith(
      RenderProgress({.done = 24, .total = 24, .fraction = 1, .elapsed_seconds = 61}, {}),
      "100 %  1:01"));
}

TEST(ProgressLineTest, EveryWidthIsKept) {
  for (int width = 20; width <= 200; ++width) {
    for (const double fraction : {0.0, 0.013, 0.5, 0.999, 1.0, 7.0, -1.0, std::nan("")}) {
      const std::string line =
          RenderProgress({.done = 1, .total = 4096, .fraction = fraction, .elapsed_seconds = 3601},
                         {.interactive = true, .utf8 = true, .width = width});
      ASSERT_LT(Columns(line), width);
      ASSERT_FALSE(absl::StrContains(line, "nan"));
    }
  }
}

TEST(ProgressPaceTest, FirstThenAtIntervalsThenLastOnce) {
  ProgressPace pace(5);
  EXPECT_TRUE(pace.Due({.fraction = 0}, 100));
  EXPECT_FALSE(pace.Due({.fraction = 0.1}, 104.9));
  EXPECT_TRUE(pace.Due({.fraction = 0.2}, 105));
  EXPECT_FALSE(pace.Due({.fraction = 0.3}, 109));
  EXPECT_TRUE(pace.Due({.fraction = 1}, 109.5));
  EXPECT_FALSE(pace.Due({.fraction = 1}, 200));
}

}  // namespace
}  // namespace ripplekv
