#include "calibration/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ripplekv {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(StatisticsTest, MeanAndStandardError) {
  EXPECT_EQ(Mean({}), 0.0);
  EXPECT_EQ(Mean({2, 4, 9}), 5.0);
  // 2, 4, 4, 4, 5, 5, 7, 9: sum of squares about the mean 32; sqrt(32 / 7 / 8).
  EXPECT_DOUBLE_EQ(*StandardError({2, 4, 4, 4, 5, 5, 7, 9}), std::sqrt(32.0 / 56.0));
  EXPECT_EQ(*StandardError({3, 3, 3}), 0.0);
  EXPECT_FALSE(StandardError({3}).has_value());
  EXPECT_FALSE(StandardError({}).has_value());
}

TEST(StatisticsTest, RanksFollowTheirDefinition) {
  EXPECT_THAT(AverageRanks({}), IsEmpty());
  EXPECT_THAT(AverageRanks({10, 20, 20, 5}), ElementsAre(2, 3.5, 3.5, 1));
  std::mt19937 random(5);
  for (int i = 0; i < 300; ++i) {
    std::vector<double> values(1 + random() % 40);
    for (double& value : values) value = random() % 12;
    const std::vector<double> ranks = AverageRanks(values);
    for (size_t a = 0; a < values.size(); ++a) {
      const auto less = std::count_if(values.begin(), values.end(),
                                      [&](double value) { return value < values[a]; });
      const auto equal = std::count(values.begin(), values.end(), values[a]);
      ASSERT_EQ(ranks[a], less + (equal + 1) / 2.0);
    }
  }
}

TEST(StatisticsTest, SpearmanOfPermutationsIsTheClassicFormula) {
  std::mt19937 random(6);
  for (int i = 0; i < 500; ++i) {
    const size_t n = 2 + random() % 40;
    std::vector<double> a(n);
    std::iota(a.begin(), a.end(), 1.0);
    std::vector<double> b = a;
    std::shuffle(a.begin(), a.end(), random);
    std::shuffle(b.begin(), b.end(), random);
    double squares = 0;
    for (size_t k = 0; k < n; ++k) squares += (a[k] - b[k]) * (a[k] - b[k]);
    const auto count = static_cast<double>(n);
    const double expected = 1 - 6 * squares / (count * (count * count - 1));
    for (double& value : a) value = std::exp(value / 10);  // ranks stay
    ASSERT_NEAR(*Spearman(a, b), expected, 1e-12);
  }
}

TEST(StatisticsTest, SpearmanWithTiesAndWithoutSpread) {
  // Ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4: 4.5 / sqrt(4.5 * 5).
  EXPECT_DOUBLE_EQ(*Spearman({1, 2, 2, 3}, {1, 2, 3, 4}), 4.5 / std::sqrt(22.5));
  EXPECT_EQ(*Spearman({1, 2, 3}, {4, 5, 6}), 1.0);
  EXPECT_EQ(*Spearman({1, 2, 3}, {6, 5, 4}), -1.0);
  EXPECT_FALSE(Spearman({1, 1, 1}, {1, 2, 3}).has_value());
  EXPECT_FALSE(Spearman({1, 2, 3}, {0, 0, 0}).has_value());
  EXPECT_FALSE(Spearman({1, 2}, {1, 2, 3}).has_value());
  EXPECT_FALSE(Spearman({1}, {1}).has_value());
}

TEST(StatisticsTest, SummaryOfExamples) {
  const SensitivityStatistics summary =
      SummariseSensitivity({{1, 10, 3}, {2, 10, 6}, {3, 10, 3}, {2, 10, 0}});
  EXPECT_THAT(summary.mean, ElementsAre(2, 10, 3));
  // Layer 0: squares 2, sqrt(2 / 3 / 4). Layer 2: squares 18, sqrt(18 / 3 / 4).
  ASSERT_EQ(summary.standard_error.size(), 3u);
  EXPECT_DOUBLE_EQ(summary.standard_error[0], std::sqrt(1.0 / 6.0));
  EXPECT_EQ(summary.standard_error[1], 0.0);
  EXPECT_DOUBLE_EQ(summary.standard_error[2], std::sqrt(1.5));
  // Even examples: 2, 10, 3; odd: 2, 10, 3.
  EXPECT_EQ(summary.split_half_spearman, 1.0);

  // Halves are even against odd, not first against second: 1, 2, 3 against 3, 2, 1.
  const SensitivityStatistics opposed =
      SummariseSensitivity({{1, 2, 3}, {3, 2, 1}, {1, 2, 3}, {3, 2, 1}});
  EXPECT_EQ(opposed.split_half_spearman, -1.0);
}

TEST(StatisticsTest, SummaryOfFewOrFlatExamples) {
  EXPECT_THAT(SummariseSensitivity({}).mean, IsEmpty());
  EXPECT_THAT(SummariseSensitivity({{1, 2}, {1}}).mean, IsEmpty());
  const SensitivityStatistics one = SummariseSensitivity({{1, 2}});
  EXPECT_THAT(one.mean, ElementsAre(1, 2));
  EXPECT_THAT(one.standard_error, IsEmpty());
  EXPECT_FALSE(one.split_half_spearman.has_value());
  const SensitivityStatistics three = SummariseSensitivity({{1, 2}, {1, 2}, {1, 2}});
  EXPECT_THAT(three.standard_error, ElementsAre(0, 0));
  EXPECT_FALSE(three.split_half_spearman.has_value());
  const std::vector<double> zeros(3, 0.0);
  EXPECT_FALSE(SummariseSensitivity({zeros, zeros, zeros, zeros}).split_half_spearman.has_value());
}

}  // namespace
}  // namespace ripplekv
