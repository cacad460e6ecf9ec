#include "kernels/argmax.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/kernels/random.h"

namespace ripplekv {
namespace {

TEST(ArgMaxTest, IsTheFirstOfTheLargest) {
  std::mt19937 random(1);
  for (Isa isa : SupportedIsas()) {
    for (int64_t n : {1, 2, 15, 16, 17, 31, 511, 512, 513, 1025, 5000}) {
      for (int shift = 0; shift < 2; ++shift) {
        std::vector<float> x = RandomFloats(random, static_cast<size_t>(n + shift), 3);
        // Few values, so that there are many of the largest.
        if (n % 2 == 1) {
          for (float& v : x) v = std::floor(v);
        }
        const float* p = x.data() + shift;
        const ArgMaxResult result = ArgMax(p, n, isa);
        EXPECT_TRUE(result.finite);
        EXPECT_EQ(result.index, std::max_element(p, p + n) - p) << IsaName(isa) << " " << n;
      }
    }
  }
}

TEST(ArgMaxTest, TakesZerosOfBothSignsAsEqualAndLowestNumbersAsNumbers) {
  const float lowest = std::numeric_limits<float>::lowest();
  for (Isa isa : SupportedIsas()) {
    std::vector<float> x(40, -0.0f);
    x[20] = 0.0f;
    EXPECT_EQ(ArgMax(x.data(), 40, isa).index, 0);
    std::fill(x.begin(), x.end(), lowest);
    EXPECT_TRUE(ArgMax(x.data(), 40, isa).finite);
    EXPECT_EQ(ArgMax(x.data(), 40, isa).index, 0);
    x[39] = std::numeric_limits<float>::denorm_min();
    EXPECT_EQ(ArgMax(x.data(), 40, isa).index, 39);
  }
}

TEST(ArgMaxTest, FindsWhatIsNotFiniteAnywhere) {
  for (Isa isa : SupportedIsas()) {
    for (float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
          -std::numeric_limits<float>::infinity()}) {
      for (size_t place : {0u, 7u, 16u, 511u, 512u, 1000u, 1029u}) {
        std::vector<float> x(1030, 1.0f);
        x[place] = bad;
        EXPECT_FALSE(ArgMax(x.data(), 1030, isa).finite) << place << " " << bad;
      }
    }
  }
}

}  // namespace
}  // namespace ripplekv
