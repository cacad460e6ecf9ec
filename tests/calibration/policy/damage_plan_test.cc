#include "calibration/policy/damage_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ripplekv {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class Random {
 public:
  explicit Random(uint64_t seed) : random_(seed) {}
  double Unit() { return std::ldexp(static_cast<double>(random_() >> 11), -53); }
  int64_t Between(int64_t min, int64_t max) {
    return min + static_cast<int64_t>(random_() % static_cast<uint64_t>(max - min + 1));
  }
  DamageCurve Curve() {
    std::vector<double> shares, damage;
    double share = 0;
    while ((share += 0.03 + 0.3 * Unit()) < 1) {
      shares.push_back(share);
      damage.push_back(Between(0, 9) == 0 ? 0 : std::pow(10.0, -3 * Unit() - 3 * share));
    }
    return DamageCurve(shares, damage);
  }
  std::vector<DamageCurve> Curves(int64_t layers) {
    std::vector<DamageCurve> curves;
    for (int64_t l = 0; l < layers; ++l) curves.push_back(Curve());
    return curves;
  }
  // The first loses nothing and is the dearest.
  std::vector<StorageOption> Options(int64_t layers) {
    std::vector<StorageOption> options = {{KvType::kBf16, 9, {}}, {KvType::kInt8, 5, {}}};
    if (Between(0, 1) == 1) options.push_back({{KvType::kInt8, KvType::kInt4}, 4, {}});
    if (Between(0, 1) == 1) options.push_back({KvType::kInt4, 3, {}});
    for (size_t o = 1; o < options.size(); ++o) {
      for (int64_t l = 0; l < layers; ++l) {
        options[o].damage.push_back(std::pow(10.0, -5 * Unit()) * static_cast<double>(o) / 10);
      }
    }
    return options;
  }

 private:
  std::mt19937_64 random_;
};

const std::vector<StorageOption> kRows = {{KvType::kBf16, 1, {}}};

double Damage(const std::vector<DamageCurve>& curves, const std::vector<StorageOption>& options,
              int64_t tokens, size_t layer, int64_t rows, size_t option) {
  const std::vector<double>& stored = options[option].damage;
  return curves[layer].At(static_cast<double>(rows) / static_cast<double>(tokens)) +
         (stored.empty() ? 0 : stored[layer]);
}

double Damage(const std::vector<DamageCurve>& curves, const std::vector<StorageOption>& options,
              int64_t tokens, const DamagePlan& plan) {
  double sum = 0;
  for (size_t l = 0; l < plan.rows.size(); ++l) {
    sum += Damage(curves, options, tokens, l, plan.rows[l], plan.option[l]);
  }
  return sum;
}

// The greatest convex function below a layer's damages, by its definition: the lowest chord over b.
double SlowHull(const std::vector<double>& damage, int64_t floor, int64_t b) {
  double lowest = damage[b];
  for (int64_t i = floor; i <= b; ++i) {
    for (int64_t j = b + 1; j < static_cast<int64_t>(damage.size()); ++j) {
      lowest = std::min(lowest, damage[i] + (damage[j] - damage[i]) * static_cast<double>(b - i) /
                                                static_cast<double>(j - i));
    }
  }
  return lowest;
}

// Of every way to spend a budget: best[c] = the least sum of hulls with rows that sum to c.
std::vector<double> BestSums(const std::vector<std::vector<double>>& hulls, int64_t floor,
                             int64_t tokens) {
  std::vector<double> best = {0};
  for (const std::vector<double>& hull : hulls) {
    std::vector<double> next(best.size() + tokens, kInfinity);
    for (size_t c = 0; c < best.size(); ++c) {
      for (int64_t b = floor; b <= tokens; ++b) {
        next[c + b] = std::min(next[c + b], best[c] + hull[b]);
      }
    }
    best = std::move(next);
  }
  return best;
}

TEST(DamagePlanTest, SpendsRowsAsWellAsTheBestOfAllWays) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Random random(seed);
    const int64_t layers = random.Between(1, 5);
    const int64_t tokens = random.Between(2, 16);  // every number of rows is looked at
    const int64_t floor = random.Between(1, tokens);
    const std::vector<DamageCurve> curves = random.Curves(layers);
    std::vector<std::vector<double>> hulls;
    for (size_t l = 0; l < curves.size(); ++l) {
      std::vector<double> damage, hull;
      for (int64_t b = 0; b <= tokens; ++b) {
        damage.push_back(Damage(curves, kRows, tokens, l, b, 0));
      }
      for (int64_t b = 0; b <= tokens; ++b) {
        hull.push_back(b < floor ? kInfinity : SlowHull(damage, floor, b));
      }
      hulls.push_back(hull);
    }
    const std::vector<double> best = BestSums(hulls, floor, tokens);
    std::vector<int64_t> before(layers, floor);
    for (int64_t budget = layers * floor; budget <= layers * tokens; ++budget) {
      const DamagePlan plan = SpendOnDamage(curves, tokens, floor, kRows, budget);
      double sum = 0;
      for (int64_t l = 0; l < layers; ++l) {
        sum += hulls[l][plan.rows[l]];
        ASSERT_GE(plan.rows[l], before[l]) << "more budget, fewer rows";
        ASSERT_LE(plan.rows[l], tokens);
      }
      ASSERT_EQ(std::accumulate(plan.rows.begin(), plan.rows.end(), int64_t{0}), budget);
      ASSERT_EQ(plan.cost, budget);
      ASSERT_NEAR(sum, best[budget], 1e-12 + 1e-9 * best[budget]) << "seed " << seed;
      before = plan.rows;
    }
  }
}

TEST(DamagePlanTest, SmallCaseByHand) {
  // Layer 0 saves 6 / 4 a row to its half, then 2 / 4; layer 1 a steady 4 / 8; its ends are 0.
  const std::vector<DamageCurve> curves = {DamageCurve({0.5}, {2}), DamageCurve({0.125}, {3.5})};
  // At(0) = 2 + 2 by the straight law on; 4 to 0: half a unit a row, both layers alike.
  EXPECT_THAT(SpendOnDamage(curves, 8, 1, kRows, 9).rows, ElementsAre(5, 4));
  const std::vector<DamageCurve> steep = {DamageCurve({0.5}, {2}), DamageCurve({0.125}, {7})};
  EXPECT_THAT(SpendOnDamage(steep, 8, 1, kRows, 5).rows, ElementsAre(1, 4));
  EXPECT_THAT(SpendOnDamage(steep, 8, 1, kRows, 10).rows, ElementsAre(2, 8));
}

TEST(DamagePlanTest, LayersAlikeShareEvenlyTheLowerFirst) {
  const DamageCurve curve({0.1, 0.2, 0.5}, {0.8, 0.4, 0.1});
  const std::vector<DamageCurve> curves(7, curve);
  for (int64_t budget = 7 * 37; budget <= 7 * 1000; budget += 13) {
    const std::vector<int64_t> rows = SpendOnDamage(curves, 1000, 37, kRows, budget).rows;
    EXPECT_TRUE(std::is_sorted(rows.rbegin(), rows.rend()));
    EXPECT_LE(rows.front() - rows.back(), 1);
  }
  // Nothing left to gain: still evenly.
  const std::vector<DamageCurve> flat(3, DamageCurve({0.1}, {0.0}));
  EXPECT_THAT(SpendOnDamage(flat, 1000, 37, kRows, 1501).rows, ElementsAre(501, 500, 500));
}

TEST(DamagePlanTest, FollowsPermutationsAndIgnoresScale) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    const int64_t layers = random.Between(2, 30), tokens = random.Between(100, 5000);
    std::vector<std::vector<double>> damage(layers);
    for (auto& d : damage) {
      d = {1 + random.Unit(), 0.5 * random.Unit(), 0.1 * random.Unit()};
    }
    const std::vector<double> shares = {0.05, 0.2, 0.6};
    std::vector<DamageCurve> curves, reversed, scaled;
    for (const auto& d : damage) {
      curves.emplace_back(shares, d);
      reversed.emplace(reversed.begin(), shares, d);
      scaled.emplace_back(shares, std::vector<double>{8 * d[0], 8 * d[1], 8 * d[2]});
    }
    const int64_t budget = random.Between(layers * 20, layers * tokens);
    const std::vector<int64_t> rows = SpendOnDamage(curves, tokens, 20, kRows, budget).rows;
    std::vector<int64_t> back = SpendOnDamage(reversed, tokens, 20, kRows, budget).rows;
    std::reverse(back.begin(), back.end());
    EXPECT_EQ(rows, back);
    EXPECT_EQ(rows, SpendOnDamage(scaled, tokens, 20, kRows, budget).rows);
  }
}

TEST(DamagePlanTest, OtherLengthsGoByTheShare) {
  Random random(5);
  const std::vector<DamageCurve> curves = random.Curves(12);
  const std::vector<int64_t> rows = SpendOnDamage(curves, 16000, 160, kRows, 12 * 3200).rows;
  const std::vector<int64_t> longer = SpendOnDamage(curves, 160000, 1600, kRows, 12 * 32000).rows;
  for (size_t l = 0; l < rows.size(); ++l) {
    EXPECT_NEAR(static_cast<double>(longer[l]) / 10, static_cast<double>(rows[l]), 16);
  }
}

// The least damage that fractions of choices could reach at a cost: the largest of its dual's
// values, a line for every price of a unit.
class LowerBound {
 public:
  LowerBound(const std::vector<DamageCurve>& curves, const std::vector<StorageOption>& options,
             int64_t tokens, int64_t floor) {
    for (double price = 1e-9; price < 1; price *= 1.1) {
      double least = 0;
      for (size_t l = 0; l < curves.size(); ++l) {
        double best = kInfinity;
        for (size_t o = 0; o < options.size(); ++o) {
          for (int64_t b = floor; b <= tokens; ++b) {
            best = std::min(best, Damage(curves, options, tokens, l, b, o) +
                                      price * static_cast<double>(b * options[o].row_cost));
          }
        }
        least += best;
      }
      lines_.emplace_back(price, least);
    }
  }

  double At(int64_t budget) const {
    double bound = 0;
    for (const auto& [price, least] : lines_) {
      bound = std::max(bound, least - price * static_cast<double>(budget));
    }
    return bound;
  }

 private:
  std::vector<std::pair<double, double>> lines_;
};

TEST(DamagePlanTest, BytesAreNeverExceededAndWellSpent) {
  int mixed = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Random random(seed);
    const int64_t layers = random.Between(2, 5), tokens = 16, floor = random.Between(1, 4);
    const std::vector<DamageCurve> curves = random.Curves(layers);
    const std::vector<StorageOption> options = random.Options(layers);
    const LowerBound bound(curves, options, tokens, floor);
    const int64_t least = LeastCost(layers, floor, options);
    const int64_t most = MostCost(layers, tokens, options);
    ASSERT_EQ(most, layers * tokens * 9);
    for (int64_t budget = least; budget <= most; budget += random.Between(1, 19)) {
      const DamagePlan plan = SpendOnDamage(curves, tokens, floor, options, budget);
      int64_t cost = 0, row = std::numeric_limits<int64_t>::max();
      for (int64_t l = 0; l < layers; ++l) {
        ASSERT_GE(plan.rows[l], floor);
        ASSERT_LE(plan.rows[l], tokens);
        const int64_t row_cost = options[plan.option[l]].row_cost;
        cost += plan.rows[l] * row_cost;
        if (plan.rows[l] < tokens) row = std::min(row, row_cost);
      }
      ASSERT_EQ(cost, plan.cost);
      ASSERT_LE(cost, budget);
      ASSERT_LT(budget - cost, row) << "one more row would fit";
      mixed += std::any_of(plan.option.begin(), plan.option.end(),
                           [&](size_t o) { return o != plan.option.front(); });
      // At most one change of a layer's type short of what fractions could do.
      const double damage = Damage(curves, options, tokens, plan);
      ASSERT_GE(damage, bound.At(budget) - 1e-12);
      const int64_t less = budget - tokens * 9;
      if (less <= least) continue;
      ASSERT_LE(damage, bound.At(less) * 1.05 + 1e-7) << "seed " << seed << " budget " << budget;
    }
    // Everything: all rows as they are.
    const DamagePlan all = SpendOnDamage(curves, tokens, floor, options, most);
    EXPECT_THAT(all.rows, Each(tokens));
    EXPECT_THAT(all.option, Each(0u));
    const DamagePlan none = SpendOnDamage(curves, tokens, floor, options, least);
    EXPECT_THAT(none.rows, Each(floor));
    EXPECT_THAT(none.option, Each(options.size() - 1));
  }
  EXPECT_GT(mixed, 100);
}

TEST(DamagePlanTest, FewerBitsFreeOfChargeAreTakenFirst) {
  Random random(9);
  const std::vector<DamageCurve> curves = random.Curves(10);
  const std::vector<StorageOption> options = {{KvType::kBf16, 520, {}},
                                              {KvType::kInt8, 280, std::vector<double>(10, 0.0)}};
  const DamagePlan plan = SpendOnDamage(curves, 1000, 37, options, 10 * 200 * 520);
  EXPECT_THAT(plan.option, Each(1u));
  // The same rows as a plan of int8 rows alone has.
  const DamagePlan alone =
      SpendOnDamage(curves, 1000, 37, {{KvType::kInt8, 280, {}}}, 10 * 200 * 520);
  EXPECT_EQ(plan.rows, alone.rows);
}

}  // namespace
}  // namespace ripplekv
