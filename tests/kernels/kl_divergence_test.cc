#include "kernels/kl_divergence.h"

#include <gtest/gtest.h>

#include "tests/kernels/random.h"

namespace ripplekv {
namespace {

std::vector<double> LogProbabilities(const std::vector<float>& logits) {
  double max = -INFINITY, sum = 0;
  for (float x : logits) max = std::max<double>(max, x);
  for (float x : logits) sum += std::exp(x - max);
  std::vector<double> out;
  for (float x : logits) out.push_back(x - max - std::log(sum));
  return out;
}

double Kl(const std::vector<float>& p, const std::vector<float>& q) {
  const std::vector<double> log_p = LogProbabilities(p);
  const std::vector<double> log_q = LogProbabilities(q);
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) sum += std::exp(log_p[i]) * (log_p[i] - log_q[i]);
  return sum;
}

TEST(KlDivergenceTest, AgreesWithDoublePrecision) {
  std::mt19937 random(30);
  for (size_t n : {1u, 2u, 15u, 16u, 17u, 1000u, 1024u, 1037u, 49152u, 50257u}) {
    for (float scale : {0.1f, 1.0f, 8.0f}) {
      const std::vector<float> p = RandomFloats(random, n, scale);
      std::vector<float> q = p;
      const std::vector<float> change = RandomFloats(random, n, 0.3f);
      for (size_t i = 0; i < n; ++i) q[i] += change[i] + 5;
      const std::vector<double> expected = LogProbabilities(p);
      const double kl = Kl(p, q);
      for (Isa isa : SupportedIsas()) {
        std::vector<float> log_p(n), log_q = q;
        LogSoftmax(p.data(), static_cast<int64_t>(n), log_p.data(), isa);
        LogSoftmax(log_q.data(), static_cast<int64_t>(n), log_q.data(), isa);  // in place
        for (size_t i = 0; i < n; ++i) ASSERT_NEAR(log_p[i], expected[i], 1e-5) << n;
        const double of_logs =
            KlDivergence(log_p.data(), log_q.data(), static_cast<int64_t>(n), isa);
        EXPECT_NEAR(of_logs, kl, 2e-6 + 1e-4 * kl) << n << " " << scale << " " << IsaName(isa);
        EXPECT_EQ(KlDivergenceOfLogits(p.data(), q.data(), static_cast<int64_t>(n), isa), of_logs);
      }
    }
  }
}

TEST(KlDivergenceTest, EqualRowsGiveExactlyZero) {
  std::mt19937 random(31);
  for (size_t n : {1u, 13u, 49152u}) {
    const std::vector<float> p = RandomFloats(random, n, 5);
    for (Isa isa : SupportedIsas()) {
      EXPECT_EQ(KlDivergenceOfLogits(p.data(), p.data(), static_cast<int64_t>(n), isa), 0.0);
      std::vector<float> log_p(n);
      LogSoftmax(p.data(), static_cast<int64_t>(n), log_p.data(), isa);
      EXPECT_EQ(KlDivergence(log_p.data(), log_p.data(), static_cast<int64_t>(n), isa), 0.0);
    }
  }
}

TEST(KlDivergenceTest, AlignmentDoesNotChangeTheBits) {
  std::mt19937 random(32);
  std::vector<float> p = RandomFloats(random, 5000, 4);
  const std::vector<float> q = RandomFloats(random, 5000, 4);
  for (Isa isa : SupportedIsas()) {
    const double expected = KlDivergenceOfLogits(p.data(), q.data(), 4999, isa);
    std::vector<float> moved(5001);
    std::copy(p.begin(), p.end(), moved.begin() + 1);
    EXPECT_EQ(KlDivergenceOfLogits(moved.data() + 1, q.data(), 4999, isa), expected);
  }
}

TEST(KlDivergenceTest, ExtremeLogits) {
  // An impossible token has no part in KL(P || Q) when P excludes it, and a NaN is never hidden.
  const std::vector<float> p = {0, 1, -INFINITY, -200};
  const std::vector<float> q = {1, 0, 3, 2};
  for (Isa isa : SupportedIsas()) {
    const double a = 1 / (1 + std::exp(1.0));
    const double z = 2 * std::log(std::exp(1.0) + 1 + std::exp(3.0) + std::exp(2.0));
    const double log_q0 = 1 - z / 2, log_q1 = -z / 2;
    const double expected = a * (std::log(a) - log_q0) + (1 - a) * (std::log(1 - a) - log_q1);
    EXPECT_NEAR(KlDivergenceOfLogits(p.data(), q.data(), 4, isa), expected, 1e-6);
    std::vector<float> bad(40, 1.0f);
    for (size_t i : {0u, 20u, 39u}) {
      std::vector<float> with_nan = bad;
      with_nan[i] = NAN;
      EXPECT_TRUE(std::isnan(KlDivergenceOfLogits(with_nan.data(), bad.data(), 40, isa))) << i;
      EXPECT_TRUE(std::isnan(KlDivergenceOfLogits(bad.data(), with_nan.data(), 40, isa))) << i;
    }
  }
}

}  // namespace
}  // namespace ripplekv
