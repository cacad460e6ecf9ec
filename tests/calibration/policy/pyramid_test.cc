#include "calibration/policy/pyramid.h"

#include <numeric>
#include <random>

#include "calibration/policy/budgets.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ripplekv {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

std::vector<int64_t> Pyramid(int64_t mean, int window, double beta, int layers, int64_t tokens) {
  return ShareInProportion(mean * layers, 1, tokens,
                           PyramidShares(mean * layers, layers, tokens, window, beta));
}

// KVCache-Factory's integers, for tokens >= 2 (mean - window).
std::vector<int64_t> Published(int64_t mean, int64_t window, int64_t beta, int64_t layers,
                               int64_t tokens) {
  const int64_t base = mean - window;
  int64_t low = base / beta, high = 2 * base - low;
  if (high >= tokens - window) {
    high = tokens - window;
    low = 2 * base - high;
  }
  std::vector<int64_t> kept;
  for (int64_t l = 0; l < layers; ++l)
    kept.push_back(high - l * ((high - low) / (layers - 1)) + window);
  return kept;
}

TEST(PyramidTest, WorkedNumbers) {
  // base 400, low 20, high 780, step 76.
  EXPECT_THAT(Pyramid(432, 32, 20, 11, 2000),
              ElementsAre(812, 736, 660, 584, 508, 432, 356, 280, 204, 128, 52));
  // The same where the prompt is too short for the top: high 768, low 32, steps of 73.6.
  EXPECT_THAT(Pyramid(432, 32, 20, 11, 800),
              ElementsAre(800, 726, 653, 579, 506, 432, 358, 285, 211, 138, 64));
}

TEST(PyramidTest, IsThePublishedFormulaWhereItsDivisionsAreExact) {
  int compared = 0;
  for (int layers : {2, 9, 17, 33}) {
    for (int64_t base = 20; base <= 4000; base += 20) {
      const int64_t tokens = 10000, window = 32;
      const int64_t mean = base + window;
      if ((2 * base - 2 * (base / 20)) % (layers - 1) != 0) continue;
      EXPECT_EQ(Pyramid(mean, window, 20, layers, tokens),
                Published(mean, window, 20, layers, tokens));
      ++compared;
    }
  }
  EXPECT_GT(compared, 200);
}

TEST(PyramidTest, KeepsTheSumWhereThePublishedOneDoesNot) {
  // 30 layers: an integer step of 25 for 25.53 leaves the sum short.
  const std::vector<int64_t> published = Published(422, 32, 20, 30, 4096);
  EXPECT_NE(std::accumulate(published.begin(), published.end(), int64_t{0}), 30 * 422);
  const std::vector<int64_t> kept = Pyramid(422, 32, 20, 30, 4096);
  EXPECT_EQ(std::accumulate(kept.begin(), kept.end(), int64_t{0}), 30 * 422);
}

TEST(PyramidTest, IsUniformWhereThePublishedOneIs) {
  EXPECT_THAT(PyramidShares(30 * 432, 30, 799, 32, 20), Each(432.0));  // tokens < 2 * 400
  EXPECT_THAT(PyramidShares(30 * 32, 30, 4000, 32, 20), Each(32.0));   // nothing but the window
  EXPECT_THAT(PyramidShares(500, 1, 4000, 32, 20), ElementsAre(500.0));
  EXPECT_THAT(PyramidShares(30 * 432, 30, 4000, 32, 1), Each(432.0));
}

TEST(PyramidTest, RandomSharesFallAndSum) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20000; ++i) {
    const int layers = 1 + static_cast<int>(random() % 100);
    const auto tokens = static_cast<int64_t>(1 + random() % 100000);
    const auto total = static_cast<int64_t>(
        layers + random() % static_cast<uint64_t>(layers * tokens - layers + 1));
    const std::vector<double> shares =
        PyramidShares(total, layers, tokens, static_cast<int>(random() % 100),
                      1 + static_cast<double>(random() % 50));
    double sum = 0;
    for (size_t l = 0; l < shares.size(); ++l) {
      ASSERT_GT(shares[l], 0);
      ASSERT_LE(shares[l], static_cast<double>(tokens) * (1 + 1e-12));
      ASSERT_LE(shares[l], shares[l == 0 ? 0 : l - 1] * (1 + 1e-12));
      sum += shares[l];
    }
    ASSERT_NEAR(sum, static_cast<double>(total), 1e-9 * static_cast<double>(total));
  }
}

}  // namespace
}  // namespace ripplekv
