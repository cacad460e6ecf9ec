#include "kernels/bf16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace ripplekv {
namespace {

TEST(Bf16Test, EveryBf16NumberSurvives) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const float f = Bf16ToFloat(static_cast<uint16_t>(h));
    if (std::isnan(f)) {
      EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(f)))) << h;
    } else {
      EXPECT_EQ(FloatToBf16(f), h);
    }
  }
}

TEST(Bf16Test, RoundsToTheNearestAndTiesToEven) {
  for (uint16_t h : {0x3f80, 0x3f81, 0x7f7e, 0x0100, 0x8101, 0xbf80, 0xc2ff}) {
    const float low = Bf16ToFloat(h);
    const float high = Bf16ToFloat(static_cast<uint16_t>(h + 1));
    const float middle = low / 2 + high / 2;  // exact: fp32 has 16 bits to spare
    EXPECT_EQ(FloatToBf16(middle), h % 2 == 0 ? h : h + 1);
    EXPECT_EQ(FloatToBf16(std::nextafter(middle, low)), h);
    EXPECT_EQ(FloatToBf16(std::nextafter(middle, high)), h + 1);
  }
}

TEST(Bf16Test, SpecialNumbers) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(FloatToBf16(inf), 0x7f80);
  EXPECT_EQ(FloatToBf16(-inf), 0xff80);
  EXPECT_EQ(FloatToBf16(std::numeric_limits<float>::max()), 0x7f80);
  // A NaN whose upper mantissa bits are all zero must not become infinity.
  const uint32_t bits = 0xff800001;
  float nan;
  std::memcpy(&nan, &bits, 4);
  EXPECT_EQ(FloatToBf16(nan), 0xffc0);
}

}  // namespace
}  // namespace ripplekv
