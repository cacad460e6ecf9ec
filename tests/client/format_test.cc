#include "client/format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace ripplekv {
namespace {

TEST(FormatTest, CountsHaveThousands) {
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1000), "1,000");
  EXPECT_EQ(FormatCount(-1000), "-1,000");
  EXPECT_EQ(FormatCount(-999), "-999");
  EXPECT_EQ(FormatCount(1234567), "1,234,567");
  EXPECT_EQ(FormatCount(std::numeric_limits<int64_t>::max()), "9,223,372,036,854,775,807");
  EXPECT_EQ(FormatCount(std::numeric_limits<int64_t>::min()), "-9,223,372,036,854,775,808");
}

TEST(FormatTest, BytesTakeTheUnitThatLeavesFewDigits) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1024), "1.0 KiB");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  // 1024 * 1024 - 1 would round to 1024.0 KiB.
  EXPECT_EQ(FormatBytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(FormatBytes(int64_t{99090432}), "94.5 MiB");
  EXPECT_EQ(FormatBytes(int64_t{3} << 30), "3.0 GiB");
  EXPECT_EQ(FormatBytes(std::numeric_limits<int64_t>::max()), "8.0 EiB");
}

TEST(FormatTest, Percent) {
  EXPECT_EQ(FormatPercent(0.2), "20.0 %");
  EXPECT_EQ(FormatPercent(0), "0.0 %");
  EXPECT_EQ(FormatPercent(1), "100.0 %");
}

TEST(FormatTest, SecondsKeepThreeDigitsThenMinutes) {
  EXPECT_EQ(FormatSeconds(0), "0.000 s");
  EXPECT_EQ(FormatSeconds(0.0123), "0.012 s");
  EXPECT_EQ(FormatSeconds(0.9996), "1.00 s");
  EXPECT_EQ(FormatSeconds(3.494), "3.49 s");
  EXPECT_EQ(FormatSeconds(9.996), "10.0 s");
  EXPECT_EQ(FormatSeconds(59.94), "59.9 s");
  EXPECT_EQ(FormatSeconds(59.96), "1 min 00 s");
  EXPECT_EQ(FormatSeconds(125), "2 min 05 s");
  EXPECT_EQ(FormatSeconds(3720), "1 h 02 min");
}

TEST(FormatTest, Clock) {
  EXPECT_EQ(FormatClock(0), "0:00");
  EXPECT_EQ(FormatClock(42.4), "0:42");
  EXPECT_EQ(FormatClock(725), "12:05");
  EXPECT_EQ(FormatClock(3729), "1:02:09");
  EXPECT_EQ(FormatClock(std::nan("")), "-");
  EXPECT_EQ(FormatClock(std::numeric_limits<double>::infinity()), "-");
}

TEST(FormatTest, RatesAreDashesWithoutTimeOrTokens) {
  EXPECT_EQ(FormatRate(100, 2), "50.0 tokens/s");
  EXPECT_EQ(FormatRate(4096, 2), "2,048 tokens/s");
  EXPECT_EQ(FormatRate(9996, 100), "100 tokens/s");
  EXPECT_EQ(FormatRate(0, 2), "-");
  EXPECT_EQ(FormatRate(-1, 2), "-");
  EXPECT_EQ(FormatRate(5, 0), "-");
  EXPECT_EQ(FormatRate(5, std::nan("")), "-");
}

TEST(FormatTest, NumbersKeepSignificantDigits) {
  EXPECT_EQ(FormatNumber(0.012345), "0.01235");
  EXPECT_EQ(FormatNumber(1.5), "1.5");
  EXPECT_EQ(FormatNumber(0), "0");
  EXPECT_EQ(FormatNumber(819.2, 6), "819.2");
  EXPECT_EQ(FormatNumber(1e-6), "1e-06");
}

}  // namespace
}  // namespace ripplekv
