#include "kernels/rms_norm.h"

#include <gtest/gtest.h>

#include "tests/kernels/random.h"

namespace ripplekv {
namespace {

TEST(RmsNormTest, AgreesWithDoublePrecisionAndDoesNotDependOnTheRange) {
  std::mt19937 random(40);
  for (int64_t cols : {1, 9, 16, 40, 576, 1001}) {
    const std::vector<float> x = RandomFloats(random, static_cast<size_t>(5 * cols), 3);
    const std::vector<float> weight = RandomFloats(random, static_cast<size_t>(cols));
    for (Isa isa : SupportedIsas()) {
      std::vector<float> y(x.size(), -9);
      RmsNorm(x.data(), weight.data(), cols, 1e-5f, y.data(), 0, 5, isa);
      for (int64_t r = 0; r < 5; ++r) {
        double squares = 0;
        for (int64_t c = 0; c < cols; ++c)
          squares += std::pow(x[static_cast<size_t>(r * cols + c)], 2);
        const double scale = 1 / std::sqrt(squares / static_cast<double>(cols) + 1e-5);
        for (int64_t c = 0; c < cols; ++c) {
          const size_t i = static_cast<size_t>(r * cols + c);
          const double expected = x[i] * scale * weight[static_cast<size_t>(c)];
          ASSERT_NEAR(y[i], expected, 1e-6 * std::abs(expected) + 1e-12)
              << cols << " " << IsaName(isa);
        }
      }
      std::vector<float> in_place = x;
      RmsNorm(in_place.data(), weight.data(), cols, 1e-5f, in_place.data(), 3, 5, isa);
      RmsNorm(in_place.data(), weight.data(), cols, 1e-5f, in_place.data(), 0, 3, isa);
      EXPECT_EQ(in_place, y);
      std::vector<uint16_t> rounded(y.size(), 0x7fc0), expected;
      RmsNormBf16(x.data(), weight.data(), cols, 1e-5f, rounded.data(), 2, 5, isa);
      RmsNormBf16(x.data(), weight.data(), cols, 1e-5f, rounded.data(), 0, 2, isa);
      for (float value : y) expected.push_back(FloatToBf16(value));
      EXPECT_EQ(rounded, expected) << cols << " " << IsaName(isa);
    }
  }
}

}  // namespace
}  // namespace ripplekv
