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

}  // namespace
}  // namespace ripplekv
