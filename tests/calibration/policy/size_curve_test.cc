#include "calibration/policy/size_curve.h"

#include <cmath>
#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ripplekv {
namespace {

SizeCurve Curve() {
  SizeCurve curve;
  curve.prompt_tokens = {1000, 4000};
  curve.retentions = {0.1, 0.2, 0.5};
  curve.mean_kl = {{0.4, 0.1, 0.01}, {0.2, 0.05, 0.005}};
  return curve;
}

// Mean KL by the documented interpolation, read forwards.
double SlowMeanKl(const std::vector<double>& retentions, std::vector<double> kl, double retention) {
  for (size_t i = 0; i < kl.size(); ++i) {
    for (size_t j = i; j < kl.size(); ++j) kl[i] = std::max(kl[i], kl[j]);
  }
  if (retention >= retentions.back()) {
    return kl.back() * (1 - retention) / (1 - retentions.back());
  }
  size_t i = 1;
  while (retentions[i] < retention) ++i;
  if (kl[i] == 0) {
    return kl[i - 1] * (retentions[i] - retention) / (retentions[i] - retentions[i - 1]);
  }
  const double t =
      std::log(retention / retentions[i - 1]) / std::log(retentions[i] / retentions[i - 1]);
  return std::exp((1 - t) * std::log(kl[i - 1]) + t * std::log(kl[i]));
}

TEST(SizeCurveTest, MeasuredPointsComeBack) {
  EXPECT_NEAR(RetentionForMeanKl(Curve(), 0.1, 1000), 0.2, 1e-12);
  EXPECT_NEAR(RetentionForMeanKl(Curve(), 0.05, 4000), 0.2, 1e-12);
  EXPECT_NEAR(RetentionForMeanKl(Curve(), 0.01, 1000), 0.5, 1e-12);
  EXPECT_NEAR(RetentionForMeanKl(Curve(), 0.2, 1000), 0.1 * std::sqrt(2.0), 1e-12);
  EXPECT_NEAR(RetentionForMeanKl(Curve(), 0.005, 1000), 0.75, 1e-12);  // half of the way to 0
  // Nothing is known below the smallest.
  EXPECT_EQ(RetentionForMeanKl(Curve(), 0.4, 1000), 0.1);
  EXPECT_EQ(RetentionForMeanKl(Curve(), 7, 1000), 0.1);
  // Beyond the measured lengths the nearest one; between them the logarithm.
  EXPECT_EQ(RetentionForMeanKl(Curve(), 0.1, 10), RetentionForMeanKl(Curve(), 0.1, 1000));
  EXPECT_EQ(RetentionForMeanKl(Curve(), 0.1, 90000), RetentionForMeanKl(Curve(), 0.1, 4000));
  EXPECT_NEAR(RetentionForMeanKl(Curve(), 0.1, 2000),
              std::sqrt(0.2 * RetentionForMeanKl(Curve(), 0.1, 4000)), 1e-12);
}

TEST(SizeCurveTest, AllRowsInFewBitsMayBeMeasuredToo) {
  SizeCurve curve = Curve();
  curve.retentions = {0.1, 0.5, 1};
  curve.mean_kl[0] = {0.4, 0.1, 0.025};
  EXPECT_TRUE(ValidateSizeCurve(curve).ok());
  EXPECT_NEAR(RetentionForMeanKl(curve, 0.05, 1000), std::sqrt(0.5), 1e-12);
  EXPECT_NEAR(RetentionForMeanKl(curve, 0.025, 1000), 1, 1e-12);
  // No size of this plan comes nearer.
  EXPECT_EQ(RetentionForMeanKl(curve, 0.01, 1000), 1);
  // Where they lose nothing it is as if 1 had not been measured.
  curve.mean_kl[0][2] = 0;
  SizeCurve without = curve;
  without.retentions.pop_back();
  for (auto& row : without.mean_kl) row.pop_back();
  for (const double nats : {0.3, 0.1, 0.05, 1e-5}) {
    EXPECT_EQ(RetentionForMeanKl(curve, nats, 1000), RetentionForMeanKl(without, nats, 1000));
  }
}

TEST(SizeCurveTest, InvertsTheInterpolationOfNoisyCurves) {
  std::mt19937_64 random(1);
  const auto unit = [&] { return std::ldexp(static_cast<double>(random() >> 11), -53); };
  for (int i = 0; i < 3000; ++i) {
    SizeCurve curve;
    curve.prompt_tokens = {512};
    double retention = 0;
    curve.mean_kl.emplace_back();
    while ((retention += 0.05 + 0.2 * unit()) < 1) {
      curve.retentions.push_back(retention);
      curve.mean_kl[0].push_back(random() % 8 == 0 ? 0 : std::pow(10.0, -4 * unit()));
    }
    double before = 1;
    for (double target = 1e-5; target < 1; target *= 1.7) {
      const double found = RetentionForMeanKl(curve, target, 512);
      ASSERT_GE(found, curve.retentions.front());
      ASSERT_LE(found, before) << "a looser target, a larger size";
      before = found;
      const double kl = SlowMeanKl(curve.retentions, curve.mean_kl[0], found * (1 + 1e-12));
      ASSERT_LE(kl, target * (1 + 1e-6) + 1e-12);
      if (found > curve.retentions.front()) {
        ASSERT_GE(SlowMeanKl(curve.retentions, curve.mean_kl[0], found * (1 - 1e-9)),
                  target * (1 - 1e-6));
      }
    }
  }
}

TEST(SizeCurveTest, ErrorsNameWhatIsWrong) {
  EXPECT_TRUE(ValidateSizeCurve(Curve()).ok());
  EXPECT_TRUE(ValidateSizeCurve({}).ok());
  const auto message = [](auto change) {
    SizeCurve curve = Curve();
    change(curve);
    const absl::Status status = ValidateSizeCurve(curve);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  using testing::HasSubstr;
  EXPECT_THAT(message([](SizeCurve& c) { c.retentions[2] = 1.5; }),
              HasSubstr("the retention 1.5 after 0.2"));
  EXPECT_THAT(message([](SizeCurve& c) { c.prompt_tokens[1] = 1000; }),
              HasSubstr("the prompt length 1000 after 1000"));
  EXPECT_THAT(message([](SizeCurve& c) { c.mean_kl.pop_back(); }),
              HasSubstr("1 rows for 2 prompt"));
  EXPECT_THAT(message([](SizeCurve& c) { c.mean_kl[0].pop_back(); }),
              HasSubstr("a row of 2 values"));
  EXPECT_THAT(message([](SizeCurve& c) { c.mean_kl[1][1] = -1; }), HasSubstr("a mean KL of -1"));
}

}  // namespace
}  // namespace ripplekv
