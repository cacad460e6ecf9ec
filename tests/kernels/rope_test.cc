#include "kernels/rope.h"

#include <gtest/gtest.h>

#include <complex>

#include "tests/kernels/random.h"

namespace ripplekv {
namespace {

TEST(RopeTest, TurnsAdjacentPairsByTheAngleOfTheirPosition) {
  std::mt19937 random(50);
  const int heads = 3;
  for (int d : {2, 10, 64}) {
    std::vector<float> inv_freq(static_cast<size_t>(d / 2));
    for (int i = 0; i < d / 2; ++i) {
      inv_freq[static_cast<size_t>(i)] = static_cast<float>(std::pow(100000.0, -2.0 * i / d));
    }
    for (int64_t position : {0, 1, 17, 8191}) {
      const std::vector<float> x = RandomFloats(random, static_cast<size_t>(heads * d));
      std::vector<float> cos(inv_freq.size()), sin(inv_freq.size()), y = x;
      RopeAngles(position, inv_freq.data(), d / 2, cos.data(), sin.data());
      Rope(y.data(), heads, d, cos.data(), sin.data());
      for (size_t i = 0; i < x.size(); i += 2) {
        // The angle is an fp32 product, as in the usual implementations.
        const float angle = static_cast<float>(position) * inv_freq[i % static_cast<size_t>(d) / 2];
        const auto turned =
            std::complex<double>(x[i], x[i + 1]) * std::polar(1.0, static_cast<double>(angle));
        EXPECT_NEAR(y[i], turned.real(), 1e-6);
        EXPECT_NEAR(y[i + 1], turned.imag(), 1e-6);
      }
      if (position == 0) {
        EXPECT_EQ(x, y);
      }
    }
  }
}

// Every range, every lane to start from, heads narrower than a vector and not.
TEST(RopeTest, LanesTurnAsPairsDo) {
  std::mt19937 random(4);
  for (int d : {2, 6, 16, 20, 64}) {
    const int heads = 5;
    const std::vector<float> x = RandomFloats(random, static_cast<size_t>(heads * d));
    std::vector<float> inv_freq(static_cast<size_t>(d / 2));
    for (int i = 0; i < d / 2; ++i)
      inv_freq[static_cast<size_t>(i)] = std::pow(0.3f, static_cast<float>(i));
    std::vector<float> cos(inv_freq.size()), sin(inv_freq.size());
    RopeAngles(1234, inv_freq.data(), d / 2, cos.data(), sin.data());
    std::vector<float> expected = x;
    Rope(expected.data(), heads, d, cos.data(), sin.data());
    std::vector<float> cosines(static_cast<size_t>(d + 16)), sines(cosines.size());
    for (int l = 0; l < d + 16; ++l) {
      const auto pair = static_cast<size_t>(l % d / 2);
      cosines[static_cast<size_t>(l)] = cos[pair];
      sines[static_cast<size_t>(l)] = l % 2 == 0 ? -sin[pair] : sin[pair];
    }
    for (Isa isa : SupportedIsas()) {
      for (int begin = 0; begin <= heads * d; begin += 2) {
        for (int end = begin; end <= heads * d; end += 2) {
          std::vector<float> turned = x;
          RopeLanes(turned.data() + begin, end - begin, begin % d, d, cosines.data(), sines.data(),
                    isa);
          for (int i = 0; i < heads * d; ++i) {
            const auto at = static_cast<size_t>(i);
            ASSERT_EQ(turned[at], i >= begin && i < end ? expected[at] : x[at])
                << d << " " << begin << " " << end << " " << IsaName(isa);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace ripplekv
