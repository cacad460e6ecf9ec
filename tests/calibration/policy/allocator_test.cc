#include "calibration/policy/allocator.h"

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/calibration/policy/golden_file.h"

namespace ripplekv {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(AllocatorTest, RippleMatchesArbitraryPrecision) {
  int cases = 0;
  for (const std::vector<std::string>& line : ReadGoldenFile("multipliers_golden.txt")) {
    const RippleAllocator ripple{.r = std::stod(line[0]), .gamma = std::stod(line[1])};
    const int layers = std::stoi(line[2]);
    std::vector<double> sensitivity, expected;
    for (int l = 0; l < layers; ++l) {
      sensitivity.push_back(std::stod(line[3 + l]));
      expected.push_back(std::stod(line[4 + layers + l]));
    }
    const auto multipliers = Multipliers(ripple, sensitivity, layers);
    ASSERT_TRUE(multipliers.ok()) << multipliers.status();
    ASSERT_EQ(multipliers->size(), expected.size());
    for (int l = 0; l < layers; ++l) {
      EXPECT_NEAR((*multipliers)[l], expected[l], 1e-13 * expected[l]) << "case " << cases;
    }
    ++cases;
  }
  EXPECT_EQ(cases, 80);
}

TEST(AllocatorTest, OneAndConstantProfilesAreExactlyUniform) {
  std::mt19937_64 random(1);
  for (int layers : {1, 2, 3, 7, 30, 32, 126, kMaxLayers}) {
    std::vector<double> sensitivity(layers);
    for (double& s : sensitivity) s = std::ldexp(static_cast<double>(random() >> 11), -53);
    const std::vector<double> uniform = *Multipliers(UniformAllocator{}, {}, layers);
    EXPECT_THAT(uniform, Each(1.0));
    EXPECT_EQ(*Multipliers(RippleAllocator{.r = 1}, sensitivity, layers), uniform);
    EXPECT_EQ(*Multipliers(RippleAllocator{.r = 9, .gamma = 1}, sensitivity, layers), uniform);
    EXPECT_EQ(*Multipliers(RippleAllocator{}, std::vector<double>(layers, 0.0), layers), uniform);
    EXPECT_EQ(*Multipliers(RippleAllocator{}, std::vector<double>(layers, 0.013), layers), uniform);
    EXPECT_EQ(*Multipliers(RippleAllocator{.r = 1.1}, std::vector<double>(layers, 2.0), layers),
              uniform);
    EXPECT_EQ(*Multipliers(UniformAllocator{}, sensitivity, layers), uniform);
  }
}

TEST(AllocatorTest, RandomProfilesKeepOrderRatioAndMean) {
  std::mt19937_64 random(2);
  const auto unit = [&] { return std::ldexp(static_cast<double>(random() >> 11), -53); };
  for (int i = 0; i < 5000; ++i) {
    const int layers = 2 + static_cast<int>(random() % 60);
    const RippleAllocator ripple{.r = std::pow(10.0, 6 * unit()),
                                 .gamma = std::pow(10.0, 6 * unit())};
    const double scale = std::pow(10.0, 20 * unit() - 15);
    std::vector<double> sensitivity(layers);
    for (double& s : sensitivity) s = scale * unit();
    const std::vector<double> w = *Multipliers(ripple, sensitivity, layers);
    double sum = 0, min = kInfinity, max = 0;
    for (int l = 0; l < layers; ++l) {
      ASSERT_GT(w[l], 0);
      sum += w[l];
      min = std::min(min, w[l]);
      max = std::max(max, w[l]);
      for (int k = 0; k < layers; ++k) {
        if (sensitivity[l] > sensitivity[k]) {
          ASSERT_GE(w[l], w[k]) << "r " << ripple.r;
        }
      }
    }
    ASSERT_NEAR(sum / layers, 1.0, 1e-12);
    ASSERT_NEAR(max / min, std::min(ripple.r, ripple.gamma), 1e-12 * ripple.r);
  }
}

TEST(AllocatorTest, ExtremeSensitivitiesStayFinite) {
  const double huge = std::numeric_limits<double>::max();
  const double tiny = std::numeric_limits<double>::denorm_min();
  EXPECT_EQ(*Multipliers(RippleAllocator{.r = 3}, {0.0, huge}, 2), (std::vector<double>{0.5, 1.5}));
  EXPECT_EQ(*Multipliers(RippleAllocator{.r = 3}, {0.0, tiny}, 2), (std::vector<double>{0.5, 1.5}));
}

TEST(AllocatorTest, ErrorsNameFieldValueAndRange) {
  const std::vector<double> three = {1, 2, 3};
  struct Case {
    Allocator allocator;
    std::vector<double> sensitivity;
    int layers;
    const char* message;
  };
  const double nan = std::nan("");
  for (const Case& c : std::vector<Case>{
           {RippleAllocator{.r = 0.5}, three, 3, "ripple.r is 0.5: must be between 1 and 1000000"},
           {RippleAllocator{.r = nan}, three, 3, "ripple.r is nan: must be between 1 and 1000000"},
           {RippleAllocator{.r = kInfinity}, three, 3, "ripple.r is inf: must be between"},
           {RippleAllocator{.r = 1.1e6}, three, 3, "ripple.r is 1.1e+06: must be between"},
           {RippleAllocator{.gamma = 0.99}, three, 3,
            "ripple.gamma is 0.99: must be between 1 and"},
           {RippleAllocator{.gamma = nan}, three, 3, "ripple.gamma is nan"},
           {RippleAllocator{}, {1, -0.5, 3}, 3, "sensitivity[1] is -0.5: must be finite and at"},
           {RippleAllocator{}, {1, 2, nan}, 3, "sensitivity[2] is nan: must be finite and at"},
           {UniformAllocator{}, {kInfinity, 2, 3}, 3, "sensitivity[0] is inf"},
           {RippleAllocator{}, three, 4,
            "sensitivity has 3 values: must have one for each of the 4"},
           {UniformAllocator{}, three, 4, "sensitivity has 3 values"},
           {RippleAllocator{}, {}, 4, "sensitivity has 0 values"},
           {UniformAllocator{}, {}, 0, "layers is 0: must be between 1 and 4096"},
           {UniformAllocator{}, {}, 4097, "layers is 4097: must be between 1 and 4096"},
       }) {
    const absl::Status status = Multipliers(c.allocator, c.sensitivity, c.layers).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
  }
}

}  // namespace
}  // namespace ripplekv
