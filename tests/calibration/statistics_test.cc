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

TEST(StatisticsTest, TablesAreSummarisedEntryByEntry) {
  const TableStatistics two = SummariseTables({{{1, 10}, {3, 4}}, {{3, 20}, {3, 8}}});
  EXPECT_THAT(two.mean, ElementsAre(ElementsAre(2, 15), ElementsAre(3, 6)));
  // Of two values: half their difference.
  EXPECT_THAT(two.standard_error, ElementsAre(ElementsAre(1, 5), ElementsAre(0, 2)));
  const TableStatistics one = SummariseTables({{{1, 10}}});
  EXPECT_THAT(one.mean, ElementsAre(ElementsAre(1, 10)));
  EXPECT_THAT(one.standard_error, IsEmpty());
  EXPECT_THAT(SummariseTables({}).mean, IsEmpty());
}

using Table = std::vector<std::vector<double>>;

// Pearson's correlation of ranks that are counted, value by value.
double SlowSpearman(const std::vector<double>& a, const std::vector<double>& b) {
  const size_t n = a.size();
  const auto ranks = [n](const std::vector<double>& values) {
    std::vector<double> ranks(n);
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) {
        ranks[i] += values[j] < values[i] ? 1 : values[j] == values[i] ? 0.5 : 0;
      }
    }
    return ranks;
  };
  const std::vector<double> x = ranks(a), y = ranks(b);
  double sx = 0, sy = 0, sxx = 0, syy = 0, sxy = 0;
  for (size_t i = 0; i < n; ++i) {
    sx += x[i], sy += y[i], sxx += x[i] * x[i], syy += y[i] * y[i], sxy += x[i] * y[i];
  }
  const auto count = static_cast<double>(n);
  return (count * sxy - sx * sy) /
         std::sqrt((count * sxx - sx * sx) * (count * syy - sy * sy));  // NaN: constant
}

// Written from the header: draws, resampled means, sorted correlations, quantiles.
RankCorrelation SlowCorrelation(const Table& a, const Table& b, bool paired) {
  std::mt19937_64 random(kBootstrapSeed);
  const auto mean = [](const Table& values, const std::vector<size_t>& which) {
    std::vector<double> sum(values[0].size());
    for (const size_t i : which) {
      for (size_t l = 0; l < sum.size(); ++l) sum[l] += values[i][l];
    }
    for (double& value : sum) value /= static_cast<double>(which.size());
    return sum;
  };
  const auto all = [](size_t n) {
    std::vector<size_t> which(n);
    std::iota(which.begin(), which.end(), size_t{0});
    return which;
  };
  const auto draw = [&](size_t n) {
    std::vector<size_t> which(n);
    for (size_t& i : which) i = static_cast<size_t>(((random() >> 32) * n) / 4294967296u);
    return which;
  };
  const double whole = SlowSpearman(mean(a, all(a.size())), mean(b, all(b.size())));
  if (std::isnan(whole)) return {whole, whole, whole};
  std::vector<double> found;
  for (int round = 0; round < 2000; ++round) {
    const std::vector<size_t> left = draw(a.size());
    const std::vector<size_t> right = paired ? left : draw(b.size());
    const double value = SlowSpearman(mean(a, left), mean(b, right));
    if (!std::isnan(value)) found.push_back(value);
  }
  std::sort(found.begin(), found.end());
  const auto quantile = [&](double q) {
    const double at = q * static_cast<double>(found.size() - 1);
    const double low = found[static_cast<size_t>(std::floor(at))];
    const double high = found[static_cast<size_t>(std::ceil(at))];
    return low * (1 - (at - std::floor(at))) + high * (at - std::floor(at));
  };
  return {whole, quantile(0.025), quantile(0.975)};
}

Table RandomTable(std::mt19937& random, size_t examples, size_t layers, int values) {
  Table table(examples, std::vector<double>(layers));
  for (auto& row : table) {
    for (size_t l = 0; l < layers; ++l) {
      // Layers differ, examples scatter; few values make ties.
      row[l] = static_cast<double>(l % 4 + random() % values);
    }
  }
  return table;
}

TEST(StatisticsTest, RankCorrelationIsThatOfASlowReference) {
  std::mt19937 random(7);
  int compared = 0;
  for (const bool paired : {false, true}) {
    for (const size_t layers : {2, 5, 30}) {
      for (const size_t examples : {1, 2, 9}) {
        const Table a = RandomTable(random, examples, layers, 6);
        const Table b = RandomTable(random, paired ? examples : examples + 3, layers, 12);
        const std::optional<RankCorrelation> found = CorrelateRanks(a, b, paired);
        const RankCorrelation expected = SlowCorrelation(a, b, paired);
        ASSERT_EQ(found.has_value(), !std::isnan(expected.spearman));
        if (!found.has_value()) continue;  // two layers of the same mean
        ++compared;
        EXPECT_NEAR(found->spearman, expected.spearman, 1e-12);
        EXPECT_NEAR(found->low, expected.low, 1e-12);
        EXPECT_NEAR(found->high, expected.high, 1e-12);
      }
    }
  }
  EXPECT_GT(compared, 12);
}

TEST(StatisticsTest, RankCorrelationOfOneExampleAndOfConstantLayers) {
  const std::optional<RankCorrelation> one = CorrelateRanks({{1, 2, 3}}, {{2, 4, 8}}, false);
  ASSERT_TRUE(one.has_value());
  EXPECT_EQ(*one, (RankCorrelation{1, 1, 1}));
  EXPECT_FALSE(CorrelateRanks({{1, 1}}, {{1, 2}}, false).has_value());
  EXPECT_FALSE(CorrelateRanks({}, {{1, 2}}, false).has_value());
  EXPECT_FALSE(CorrelateRanks({{1, 2}}, {{1, 2}, {2, 1}}, true).has_value());
}

}  // namespace
}  // namespace ripplekv
