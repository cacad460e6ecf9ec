#include "calibration/policy/selector.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ripplekv {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The definition, by a stable sort.
std::vector<int32_t> SlowSelect(const std::vector<float>& scores, int64_t tokens, int64_t budget,
                                int sinks, int window) {
  std::vector<bool> keep(tokens, false);
  for (int64_t i = 0; i < std::min<int64_t>(sinks, tokens); ++i) keep[i] = true;
  for (int64_t i = std::max<int64_t>(0, tokens - window); i < tokens; ++i) keep[i] = true;
  std::vector<int64_t> order;
  for (int64_t i = 0; i < tokens; ++i) {
    if (!keep[i]) order.push_back(i);
  }
  const auto value = [&](int64_t i) { return std::isnan(scores[i]) ? -kInfinity : scores[i]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return value(a) > value(b); });
  const int64_t missing = budget - std::count(keep.begin(), keep.end(), true);
  for (int64_t i = 0; i < missing; ++i) keep[order[i]] = true;
  std::vector<int32_t> kept;
  for (int64_t i = 0; i < tokens; ++i) {
    if (keep[i]) kept.push_back(static_cast<int32_t>(i));
  }
  return kept;
}

TEST(SelectorTest, RandomScoresMatchTheDefinition) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 6000; ++i) {
    const auto tokens = static_cast<int64_t>(1 + random() % (i % 50 == 0 ? 5000 : 120));
    const int sinks = static_cast<int>(random() % 8);
    const int window = static_cast<int>(random() % 40);
    const int64_t forced = std::min<int64_t>(tokens, sinks + window);
    const auto budget = forced + static_cast<int64_t>(random() % (tokens - forced + 1));
    std::vector<float> scores(std::max<int64_t>(0, tokens - window));
    for (float& score : scores) {
      switch (random() % 8) {
        case 0:
          score = static_cast<float>(random() % 3);  // ties
          break;
        case 1:
          score = std::vector<float>{kNan, -kNan, kInfinity, -kInfinity,
                                     0.0f, -0.0f, 1e-45f,    -1e-45f}[random() % 8];
          break;
        default:
          score = static_cast<float>(static_cast<int64_t>(random() % 2000001) - 1000000) * 1e-6f;
      }
    }
    const auto kept = SelectPositions(scores, tokens, budget, sinks, window);
    ASSERT_TRUE(kept.ok()) << kept.status();
    ASSERT_EQ(*kept, SlowSelect(scores, tokens, budget, sinks, window)) << "case " << i;
    ASSERT_EQ(static_cast<int64_t>(kept->size()), budget);
  }
}

TEST(SelectorTest, TiesGoToTheLowerPosition) {
  EXPECT_THAT(*SelectPositions({1, 1, 1, 1, 1, 1}, 7, 4, 1, 1), ElementsAre(0, 1, 2, 6));
  EXPECT_THAT(*SelectPositions({9, 1, 2, 1, 2, 2}, 7, 4, 1, 1), ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(*SelectPositions({-0.0f, 0.0f, -0.0f, 0.0f}, 5, 3, 0, 1), ElementsAre(0, 1, 4));
}

TEST(SelectorTest, SinksAndWindowAreForced) {
  EXPECT_THAT(*SelectPositions({-9, -9, 5, 6, 7}, 7, 5, 2, 2), ElementsAre(0, 1, 4, 5, 6));
  EXPECT_THAT(*SelectPositions({-9, -9, 5, 6, 7}, 7, 4, 2, 2), ElementsAre(0, 1, 5, 6));
  EXPECT_THAT(*SelectPositions({1, 2, 3}, 5, 5, 4, 2), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(*SelectPositions({}, 3, 3, 4, 32), ElementsAre(0, 1, 2));
}

TEST(SelectorTest, NanIsTheLowestScore) {
  EXPECT_THAT(*SelectPositions({kNan, 1, kNan, -5}, 4, 2, 0, 0), ElementsAre(1, 3));
  EXPECT_THAT(*SelectPositions({kNan, -kInfinity, kNan, kNan}, 4, 2, 0, 0), ElementsAre(0, 1));
}

TEST(SelectorTest, LongPromptsKeepTheBudgetExactly) {
  const int64_t tokens = 1000000;
  std::vector<float> scores(tokens - 32);
  for (size_t i = 0; i < scores.size(); ++i) scores[i] = static_cast<float>(i * 7919 % 1000);
  const std::vector<int32_t> kept = *SelectPositions(scores, tokens, 100000, 4, 32);
  EXPECT_EQ(kept, SlowSelect(scores, tokens, 100000, 4, 32));
}

TEST(SelectorTest, ErrorsNameArgumentValueAndRange) {
  struct Case {
    size_t scores;
    int64_t tokens, budget;
    int sinks, window;
    const char* message;
  };
  for (const Case& c : std::vector<Case>{
           {0, 0, 0, 0, 0, "prompt_tokens is 0: must be between 1 and 2147483647"},
           {5, 10, 4, -1, 5, "sinks is -1: must be at least 0"},
           {5, 10, 4, 1, -5, "window is -5: must be at least 0"},
           {5, 10, 5, 1, 5, "budget is 5: must be between 6 (sinks 1 + window 5, at most the"},
           {5, 10, 11, 1, 5, "budget is 11: must be between 6"},
           {4, 10, 8, 1, 5, "the number of scores is 4: must be 5 (prompt 10 - window 5)"},
           {6, 10, 8, 1, 5, "the number of scores is 6: must be 5"},
           {1, 3, 3, 4, 32, "the number of scores is 1: must be 0"},
       }) {
    const std::vector<float> scores(c.scores, 0.5f);
    const absl::Status status =
        SelectPositions(scores, c.tokens, c.budget, c.sinks, c.window).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
  }
}

TEST(SelectorTest, RecentKeepsSinksAndTheLastPositions) {
  EXPECT_THAT(*SelectRecent(10, 5, 2, 3), ElementsAre(0, 1, 7, 8, 9));
  EXPECT_THAT(*SelectRecent(10, 7, 2, 3), ElementsAre(0, 1, 5, 6, 7, 8, 9));
  EXPECT_THAT(*SelectRecent(10, 10, 4, 6), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_THAT(*SelectRecent(3, 3, 4, 32), ElementsAre(0, 1, 2));
  EXPECT_THAT(*SelectRecent(9, 4, 0, 4), ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(std::string(SelectRecent(10, 4, 2, 3).status().message()),
              HasSubstr("budget is 4: must be between 5"));
  EXPECT_THAT(std::string(SelectRecent(0, 0, 2, 3).status().message()),
              HasSubstr("prompt_tokens is 0"));
  // It is what scores that grow with the position choose.
  std::mt19937_64 random(4);
  for (int i = 0; i < 500; ++i) {
    const auto tokens = static_cast<int64_t>(1 + random() % 200);
    const int sinks = static_cast<int>(random() % 8);
    const int window = static_cast<int>(1 + random() % 40);
    const int64_t forced = std::min<int64_t>(tokens, sinks + window);
    const auto budget = forced + static_cast<int64_t>(random() % (tokens - forced + 1));
    std::vector<float> scores(std::max<int64_t>(0, tokens - window));
    std::iota(scores.begin(), scores.end(), 0.0f);
    ASSERT_EQ(*SelectRecent(tokens, budget, sinks, window),
              *SelectPositions(scores, tokens, budget, sinks, window));
  }
}

TEST(SelectorTest, QueriesThatVote) {
  EXPECT_THAT(VotingQueries(SnapKv{.window = 3}, 10), ElementsAre(7, 8, 9));
  EXPECT_THAT(VotingQueries(RecentAttention{.queries = 4}, 10), ElementsAre(6, 7, 8, 9));
  EXPECT_THAT(VotingQueries(MixedAttention{.snapkv = {.window = 2}, .queries = 3}, 10),
              ElementsAre(7, 8, 9));
  EXPECT_THAT(VotingQueries(MixedAttention{.snapkv = {.window = 4}, .queries = 3}, 10),
              ElementsAre(6, 7, 8, 9));
  EXPECT_THAT(VotingQueries(H2o{.queries = 4}, 10), ElementsAre(1, 4, 6, 9));
  EXPECT_THAT(VotingQueries(H2o{.queries = 5}, 10), ElementsAre(1, 3, 5, 7, 9));
  EXPECT_THAT(VotingQueries(H2o{.queries = 1}, 10), ElementsAre(9));
  EXPECT_THAT(VotingQueries(H2o{.queries = 256}, 4), ElementsAre(0, 1, 2, 3));
  EXPECT_TRUE(VotingQueries(StreamingLlm{}, 10).empty());
  EXPECT_TRUE(VotingQueries(RandomPositions{}, 10).empty());
}

TEST(SelectorTest, AStrideIsEvenAndEndsWithThePrompt) {
  for (const int64_t tokens : {1, 2, 255, 256, 257, 1000, 8191, 131072}) {
    for (const int queries : {1, 7, 256, 512}) {
      const auto positions = VotingQueries(H2o{.queries = queries}, tokens);
      const int64_t n = std::min<int64_t>(queries, tokens);
      ASSERT_EQ(static_cast<int64_t>(positions.size()), n);
      ASSERT_EQ(positions.back(), tokens - 1);
      int64_t before = -1;
      for (const int32_t position : positions) {
        ASSERT_GE(position - before, tokens / n);
        ASSERT_LE(position - before, (tokens + n - 1) / n);
        before = position;
      }
    }
  }
}

TEST(SelectorTest, MixedScoresAreSharesOfTheirSums) {
  std::vector<float> out(4);
  // The sinks' own score counts in no sum.
  MixScores({90, 1, 1, 2}, {50, 0, 6, 2}, 1, 0.25, absl::MakeSpan(out));
  EXPECT_FLOAT_EQ(out[1], 0.25 * 1 / 4);
  EXPECT_FLOAT_EQ(out[2], 0.25 * 1 / 4 + 0.75 * 6 / 8);
  EXPECT_FLOAT_EQ(out[3], 0.25 * 2 / 4 + 0.75 * 2 / 8);
  MixScores({0, 0, 0, 0}, {0, 1, 1, 2}, 0, 0.5, absl::MakeSpan(out));
  EXPECT_THAT(out, ElementsAre(0, 0.125, 0.125, 0.25));
  std::vector<float> in_place = {90, 1, 1, 2};
  MixScores(in_place, {50, 0, 6, 2}, 1, 1, absl::MakeSpan(in_place));
  EXPECT_THAT(in_place, ElementsAre(22.5, 0.25, 0.25, 0.5));
}

TEST(SelectorTest, RandomScoresArePhiloxNumbers) {
  // By an independent Philox4x32-10, which meets Random123's published vectors.
  constexpr uint64_t kSeed = 1234567890123456789;
  constexpr float kUnit = 1.0f / 16777216;
  EXPECT_THAT(RandomScores(kSeed, 0, 0, 4),
              ElementsAre(2456810 * kUnit, 1155589 * kUnit, 14658054 * kUnit, 10777770 * kUnit));
  EXPECT_THAT(RandomScores(kSeed, 3, 1, 4),
              ElementsAre(13687726 * kUnit, 2786845 * kUnit, 6656727 * kUnit, 15836385 * kUnit));
  // Even: of many thirds, each holds a third.
  const std::vector<float> many = RandomScores(1, 0, 0, 30000);
  for (const float from : {0.0f, 1.0f / 3, 2.0f / 3}) {
    const auto count = std::count_if(many.begin(), many.end(),
                                     [&](float x) { return x >= from && x < from + 1.0f / 3; });
    EXPECT_NEAR(static_cast<double>(count), 10000, 300);
  }
}

TEST(SelectorTest, ParametersOfTheOthersAreChecked) {
  const auto message = [](const SelectorSpec& selector) {
    return std::string(ValidateSelector(selector).message());
  };
  for (const SelectorSpec& good :
       {SelectorSpec(H2o{}), SelectorSpec(H2o{.window = 1024, .queries = 512}),
        SelectorSpec(RecentAttention{}), SelectorSpec(MixedAttention{}),
        SelectorSpec(MixedAttention{.weight = 0}), SelectorSpec(MixedAttention{.weight = 1}),
        SelectorSpec(StreamingLlm{}), SelectorSpec(RandomPositions{.seed = ~uint64_t{0}})}) {
    EXPECT_TRUE(ValidateSelector(good).ok()) << message(good);
  }
  EXPECT_EQ(message(H2o{.window = 0}), "h2o.window is 0: must be between 1 and 1024");
  EXPECT_EQ(message(H2o{.queries = 0}), "h2o.queries is 0: must be between 1 and 512");
  EXPECT_EQ(message(H2o{.queries = 513}), "h2o.queries is 513: must be between 1 and 512");
  EXPECT_EQ(message(RecentAttention{.queries = -1}),
            "recent_attention.queries is -1: must be between 1 and 512");
  EXPECT_EQ(message(RecentAttention{.kernel = 4}),
            "recent_attention.kernel is 4: must be odd and between 1 and 63");
  EXPECT_EQ(message(MixedAttention{.snapkv = {.kernel = 65}}),
            "mixed.snapkv.kernel is 65: must be odd and between 1 and 63");
  EXPECT_EQ(message(MixedAttention{.weight = -0.5}),
            "mixed.weight is -0.5: must be between 0 and 1");
  EXPECT_THAT(message(MixedAttention{.weight = std::nan("")}), HasSubstr("mixed.weight is nan"));
  EXPECT_EQ(message(StreamingLlm{.window = 1025}),
            "streaming_llm.window is 1025: must be between 1 and 1024");
  EXPECT_EQ(message(RandomPositions{.window = 0}),
            "random.window is 0: must be between 1 and 1024");
  EXPECT_EQ(SelectorWindow(MixedAttention{.snapkv = {.window = 9}}), 9);
  EXPECT_EQ(SelectorWindow(StreamingLlm{.window = 7}), 7);
}

TEST(SelectorTest, ParametersAreChecked) {
  EXPECT_TRUE(ValidateSelector(SnapKv{}).ok());
  EXPECT_TRUE(ValidateSelector(SnapKv{.window = 1024, .kernel = 63}).ok());
  const auto message = [](SnapKv snapkv) {
    return std::string(ValidateSelector(snapkv).message());
  };
  EXPECT_EQ(message({.window = 0}), "snapkv.window is 0: must be between 1 and 1024");
  EXPECT_EQ(message({.window = 1025}), "snapkv.window is 1025: must be between 1 and 1024");
  EXPECT_EQ(message({.kernel = 6}), "snapkv.kernel is 6: must be odd and between 1 and 63");
  EXPECT_EQ(message({.kernel = -1}), "snapkv.kernel is -1: must be odd and between 1 and 63");
  EXPECT_EQ(message({.kernel = 65}), "snapkv.kernel is 65: must be odd and between 1 and 63");
  EXPECT_EQ(message({.pooling = static_cast<Pooling>(9)}),
            "snapkv.pooling is 9: must be max, mean or none");
  EXPECT_EQ(SelectorWindow(SnapKv{.window = 8}), 8);
}

}  // namespace
}  // namespace ripplekv
