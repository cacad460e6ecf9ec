#include "calibration/policy/damage_curve.h"

#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ripplekv {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

DamageTable Table() {
  DamageTable table;
  table.prompt_tokens = 1024;
  table.retentions = {0.1, 0.2, 0.5};
  table.rows = {{0.8, 0.4, 0.1}, {0.2, 0.3, 0.05}};
  table.types = {KvType::kInt4};
  table.storage = {{0.01}, {0.02}};
  return table;
}

TEST(DamageCurveTest, GoesThroughConvexPointsByTheirLogarithms) {
  const DamageCurve curve({0.1, 0.2, 0.5}, {0.8, 0.4, 0.1});
  EXPECT_THAT(curve.points(),
              ElementsAre(Pair(0.1, 0.8), Pair(0.2, 0.4), Pair(0.5, 0.1), Pair(1.0, 0.0)));
  EXPECT_DOUBLE_EQ(curve.At(0.1), 0.8);
  EXPECT_NEAR(curve.At(0.15), std::sqrt(0.8 * 0.4), 1e-15);
  EXPECT_NEAR(curve.At(0.3), 0.4 * std::pow(0.25, 1.0 / 3), 1e-15);
  EXPECT_NEAR(curve.At(0.75), 0.05, 1e-15);  // straight to (1, 0)
  EXPECT_EQ(curve.At(1), 0);
  EXPECT_NEAR(curve.At(0.05), 0.8 * std::sqrt(2.0), 1e-15);  // on by the first interval's law
  EXPECT_NEAR(curve.At(0), 1.6, 1e-15);
}

TEST(DamageCurveTest, PointsAboveTheHullAreNoise) {
  EXPECT_THAT(DamageCurve({0.1, 0.2, 0.5}, {0.2, 0.3, 0.05}).points(),
              ElementsAre(Pair(0.1, 0.2), Pair(0.5, 0.05), Pair(1.0, 0.0)));
  // The lower point is believed: more rows do not help beyond it.
  const DamageCurve flat({0.1, 0.2, 0.5}, {0.4, 0.0, 0.3});
  EXPECT_THAT(flat.points(), ElementsAre(Pair(0.1, 0.4), Pair(0.2, 0.0), Pair(1.0, 0.0)));
  EXPECT_NEAR(flat.At(0.15), 0.2, 1e-15);
  EXPECT_EQ(flat.At(0.7), 0);
  // On one line only the ends stay.
  EXPECT_THAT(DamageCurve({0.25, 0.5, 0.75}, {0.75, 0.5, 0.25}).points(),
              ElementsAre(Pair(0.25, 0.75), Pair(1.0, 0.0)));
  EXPECT_EQ(DamageCurve({}, {}).At(0.3), 0);
}

TEST(DamageCurveTest, RandomPointsGiveFallingCurvesBelowThem) {
  std::mt19937_64 random(1);
  const auto unit = [&] { return std::ldexp(static_cast<double>(random() >> 11), -53); };
  for (int i = 0; i < 3000; ++i) {
    std::vector<double> shares, damage;
    double share = 0;
    while ((share += 0.02 + 0.2 * unit()) < 1) {
      shares.push_back(share);
      damage.push_back(random() % 6 == 0 ? 0 : std::pow(10.0, -8 * unit()));
    }
    const DamageCurve curve(shares, damage);
    for (size_t p = 0; p < shares.size(); ++p) {
      ASSERT_LE(curve.At(shares[p]), damage[p] * (1 + 1e-12));
    }
    double before = std::numeric_limits<double>::infinity();
    for (int x = 0; x <= 1000; ++x) {
      const double now = curve.At(x / 1000.0);
      ASSERT_TRUE(std::isfinite(now) && now >= 0 && now <= before * (1 + 1e-12));
      before = now;
    }
    ASSERT_EQ(before, 0);
  }
}

TEST(DamageCurveTest, StaysFinite) {
  const DamageCurve steep({0.5, 0.5 + 1e-9}, {1.0, 1e-300});
  EXPECT_TRUE(std::isfinite(steep.At(0)));
  EXPECT_GE(steep.At(0), 1.0);
}

TEST(DamageAtTest, IsLinearBetweenWhatWasMeasured) {
  EXPECT_THAT(*DamageAt(Table(), 0.1), ElementsAre(0.8, 0.2));
  EXPECT_THAT(*DamageAt(Table(), 0.5), ElementsAre(0.1, 0.05));
  EXPECT_NEAR((*DamageAt(Table(), 0.15))[1], 0.25, 1e-15);
  EXPECT_NEAR((*DamageAt(Table(), 0.75))[0], 0.05, 1e-15);
  const absl::Status low = DamageAt(Table(), 0.05).status();
  EXPECT_EQ(low.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(low.message()),
              HasSubstr("the smallest that the profile measured is 0.1"));
  const absl::Status none = DamageAt({}, 0.5).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(none.message()), HasSubstr("calibrate"));
}

TEST(ValidateDamageTableTest, NamesWhatIsWrong) {
  EXPECT_TRUE(ValidateDamageTable(Table(), 2).ok());
  EXPECT_TRUE(ValidateDamageTable({}, 2).ok());
  const auto message = [](auto change) {
    DamageTable table = Table();
    change(table);
    const absl::Status status = ValidateDamageTable(table, 2);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(message([](DamageTable& t) { t.retentions[1] = 0.1; }),
            "damage.retentions[1] is 0.1: must be above 0.1 and below 1");
  EXPECT_EQ(message([](DamageTable& t) { t.retentions[2] = 1; }),
            "damage.retentions[2] is 1: must be above 0.2 and below 1");
  EXPECT_EQ(message([](DamageTable& t) { t.rows.pop_back(); }),
            "damage.rows has 1 layers: must have 2");
  EXPECT_EQ(message([](DamageTable& t) { t.rows[1].pop_back(); }),
            "damage.rows[1] has 2 values: must have 3");
  EXPECT_EQ(message([](DamageTable& t) { t.storage[0][0] = -1; }),
            "damage.storage[0][0] is -1: must be finite and at least 0");
  EXPECT_THAT(message([](DamageTable& t) { t.rows[0][1] = std::nan(""); }),
              HasSubstr("damage.rows[0][1] is nan"));
  EXPECT_THAT(message([](DamageTable& t) { t.types.clear(); }),
              HasSubstr("damage.storage[0] has 1 values: must have 0"));
}

}  // namespace
}  // namespace ripplekv
