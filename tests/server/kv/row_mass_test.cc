#include "server/kv/row_mass.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace ripplekv {
namespace {

TEST(RowMassTest, TheMeanIsOverTheStepsThatSawTheRow) {
  RowMass mass(2, 4);
  ASSERT_TRUE(mass.on());
  EXPECT_EQ(mass.stride(), 4);
  mass.AddRows(0, 2, 0);
  const auto step = [&](std::vector<float> values) {
    std::copy(values.begin(), values.end(), mass.step());
  };
  step({0.5f, 0.25f, 9, 9, 1, 2, 9, 9});
  mass.CommitStep(2);
  mass.AddRows(2, 3, 1);
  EXPECT_EQ(mass.Mean(0, 2, 1), 0);  // no step has seen it
  step({0.25f, 0.25f, 0.75f, 9, 3, 0, 4, 9});
  mass.CommitStep(3);
  EXPECT_EQ(mass.Mean(0, 0, 2), 0.375f);
  EXPECT_EQ(mass.Mean(0, 1, 2), 0.25f);
  EXPECT_EQ(mass.Mean(0, 2, 2), 0.75f);
  EXPECT_EQ(mass.Mean(1, 0, 2), 2);
  EXPECT_EQ(mass.Mean(1, 1, 2), 1);
  EXPECT_EQ(mass.Mean(1, 2, 2), 4);

  mass.Move(1, 2, 1);
  EXPECT_EQ(mass.Mean(1, 1, 2), 4);
  EXPECT_EQ(mass.Mean(0, 1, 2), 0.25f) << "the other head stays";
  // A row number that is used again starts anew.
  mass.AddRows(2, 3, 2);
  EXPECT_EQ(mass.Mean(1, 2, 2), 0);
}

TEST(RowMassTest, ANaNCountsAsNothing) {
  RowMass mass(1, 1);
  mass.AddRows(0, 1, 0);
  mass.step()[0] = NAN;
  mass.CommitStep(1);
  EXPECT_EQ(mass.Mean(0, 0, 1), 0);
}

TEST(RowMassTest, ChoosesTheHighestAndTheLowerOfEquals) {
  EXPECT_EQ(ChooseByMass({1, 5, 3, 5, 3, 0}, 3, 0, 0), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(ChooseByMass({1, 5, 3, 5, 3, 0}, 3, 1, 1), (std::vector<int64_t>{0, 1, 5}));
  EXPECT_EQ(ChooseByMass({1, 5, 3, 5, 3, 0}, 2, 1, 1), (std::vector<int64_t>{0, 5}));
  EXPECT_EQ(ChooseByMass({1, 5}, 2, 0, 0), (std::vector<int64_t>{0, 1}));
  EXPECT_TRUE(ChooseByMass({1, 5}, 0, 0, 0).empty());
  EXPECT_TRUE(ChooseByMass({}, 0, 0, 0).empty());
}

// Against picking the best of the rest one at a time.
TEST(RowMassTest, ChoosesAsAPlainSearchDoes) {
  std::mt19937 random(11);
  for (int round = 0; round < 2000; ++round) {
    const auto rows = static_cast<int64_t>(1 + random() % 40);
    std::vector<float> mean;
    for (int64_t r = 0; r < rows; ++r) mean.push_back(static_cast<float>(random() % 6));
    const auto keep = static_cast<int64_t>(random() % static_cast<uint32_t>(rows + 1));
    const auto first = static_cast<int64_t>(random() % static_cast<uint32_t>(keep + 1));
    const auto last = static_cast<int64_t>(random() % static_cast<uint32_t>(keep - first + 1));
    std::vector<bool> kept(static_cast<size_t>(rows));
    for (int64_t r = 0; r < rows; ++r) kept[static_cast<size_t>(r)] = r < first || r >= rows - last;
    for (int64_t n = first + last; n < keep; ++n) {
      int64_t best = -1;
      for (int64_t r = 0; r < rows; ++r) {
        if (!kept[static_cast<size_t>(r)] &&
            (best < 0 || mean[static_cast<size_t>(r)] > mean[static_cast<size_t>(best)])) {
          best = r;
        }
      }
      kept[static_cast<size_t>(best)] = true;
    }
    std::vector<int64_t> expected;
    for (int64_t r = 0; r < rows; ++r) {
      if (kept[static_cast<size_t>(r)]) expected.push_back(r);
    }
    ASSERT_EQ(ChooseByMass(mean, keep, first, last), expected) << "round " << round;
  }
}

}  // namespace
}  // namespace ripplekv
