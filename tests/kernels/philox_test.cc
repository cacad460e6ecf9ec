#include "kernels/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace ripplekv {
namespace {

// Known answers of the authors' library Random123 (kat_vectors, philox4x32 with 10 rounds).
TEST(PhiloxTest, KnownAnswers) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(Philox4x32({ones, ones, ones, ones}, {ones, ones}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PhiloxTest, NormalsFollowTheStatedPacking) {
  const NoiseKey key{.seed = 0x123456789abcdef0, .example = 11, .layer = 29};
  const auto words = Philox4x32({5u + 2u * 65536u, 1023, 29, 11}, {0x9abcdef0, 0x12345678});
  const auto normals = NoiseBlock(key, 2, 1023, 5);
  for (int pair = 0; pair < 2; ++pair) {
    const long double u = (words[2 * pair] + 1.0L) / 4294967296.0L;
    const long double w = (words[2 * pair + 1] + 1.0L) / 4294967296.0L;
    const long double pi = std::acos(-1.0L);
    const long double radius = std::sqrt(-2 * std::log(u));
    EXPECT_NEAR(normals[2 * pair], static_cast<double>(radius * std::cos(2 * pi * w)), 1e-6);
    EXPECT_NEAR(normals[2 * pair + 1], static_cast<double>(radius * std::sin(2 * pi * w)), 1e-6);
  }
}

TEST(PhiloxTest, EveryCoordinateMatters) {
  std::set<float> first;
  const NoiseKey key{.seed = 1, .example = 2, .layer = 3};
  first.insert(NoiseBlock(key, 4, 5, 6)[0]);
  first.insert(NoiseBlock({.seed = 2, .example = 2, .layer = 3}, 4, 5, 6)[0]);
  first.insert(NoiseBlock({.seed = 1 + (uint64_t{1} << 32), .example = 2, .layer = 3}, 4, 5, 6)[0]);
  first.insert(NoiseBlock({.seed = 1, .example = 3, .layer = 3}, 4, 5, 6)[0]);
  first.insert(NoiseBlock({.seed = 1, .example = 2, .layer = 4}, 4, 5, 6)[0]);
  first.insert(NoiseBlock(key, 5, 5, 6)[0]);
  first.insert(NoiseBlock(key, 4, 6, 6)[0]);
  first.insert(NoiseBlock(key, 4, 5, 7)[0]);
  EXPECT_EQ(first.size(), 8u);
}

TEST(PhiloxTest, MomentsOfTheNormalDistribution) {
  double sum = 0, squares = 0, cubes = 0, fourths = 0, neighbours = 0;
  const int blocks = 250000;
  float last = 0;
  for (int i = 0; i < blocks; ++i) {
    for (float x :
         NoiseBlock({.seed = 9}, 0, static_cast<uint32_t>(i / 16), static_cast<uint32_t>(i % 16))) {
      ASSERT_TRUE(std::isfinite(x));
      const double x2 = static_cast<double>(x) * x;
      sum += x;
      squares += x2;
      cubes += x2 * x;
      fourths += x2 * x2;
      neighbours += static_cast<double>(x) * last;
      last = x;
    }
  }
  // Five standard errors of each moment over n = 10^6.
  const double n = 4.0 * blocks;
  EXPECT_NEAR(sum / n, 0, 5 * std::sqrt(1 / n));
  EXPECT_NEAR(squares / n, 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(cubes / n, 0, 5 * std::sqrt(15 / n));
  EXPECT_NEAR(fourths / n, 3, 5 * std::sqrt(96 / n));
  EXPECT_NEAR(neighbours / n, 0, 5 * std::sqrt(1 / n));
}

}  // namespace
}  // namespace ripplekv
