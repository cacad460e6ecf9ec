#include "kernels/hadamard.h"

#include <gtest/gtest.h>

#include "tests/kernels/hadamard_matrix.h"
#include "tests/kernels/random.h"

namespace ripplekv {
namespace {

constexpr int kSizes[] = {1, 6, 31, 32, 40, 63, 64, 80, 96, 128, 152, 512};

std::vector<float> Transformed(const std::vector<float>& x) {
  std::vector<float> out(x.size(), NAN);
  HadamardRow(x.data(), static_cast<int>(x.size()), out.data());
  return out;
}

TEST(HadamardTest, AgreesWithTheMatrix) {
  std::mt19937 random(1);
  for (const int d : kSizes) {
    const std::vector<float> x = RandomFloats(random, static_cast<size_t>(d));
    const std::vector<float> out = Transformed(x);
    const std::vector<double> expected = SlowHadamardRow({x.begin(), x.end()});
    for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(out[i], expected[i], 1e-6) << d << " " << i;
  }
}

// A row of 152 channels: two blocks of 64, and 24 channels that are too few for one.
TEST(HadamardTest, FewChannelsStayAsTheyAre) {
  std::mt19937 random(2);
  const std::vector<float> x = RandomFloats(random, 152);
  const std::vector<float> out = Transformed(x);
  EXPECT_TRUE(std::equal(x.begin() + 128, x.end(), out.begin() + 128));
  for (size_t i = 0; i < 128; ++i) EXPECT_NE(out[i], x[i]);
}

TEST(HadamardTest, IsItsOwnInverseAndKeepsDotProducts) {
  std::mt19937 random(3);
  for (const int d : kSizes) {
    const std::vector<float> x = RandomFloats(random, static_cast<size_t>(d));
    const std::vector<float> y = RandomFloats(random, static_cast<size_t>(d));
    const std::vector<float> to = Transformed(x), of_y = Transformed(y);
    const std::vector<float> back = Transformed(to);
    double before = 0, after = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_NEAR(back[i], x[i], 1e-6);
      before += double{x[i]} * y[i];
      after += double{to[i]} * of_y[i];
    }
    EXPECT_NEAR(after, before, 1e-7 * d + 1e-6);
  }
}

TEST(HadamardTest, WorksInPlace) {
  std::mt19937 random(4);
  for (const int d : kSizes) {
    std::vector<float> x = RandomFloats(random, static_cast<size_t>(d));
    const std::vector<float> expected = Transformed(x);
    HadamardRow(x.data(), d, x.data());
    EXPECT_EQ(x, expected);
  }
}

}  // namespace
}  // namespace ripplekv
