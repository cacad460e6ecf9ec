#include "calibration/policy/budgets.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "calibration/policy/allocator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/calibration/policy/golden_file.h"

namespace ripplekv {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

LayerBudgets Share(int64_t tokens, Size size, std::vector<double> multipliers,
                   int64_t min_positions = 0, int64_t floor = 1) {
  const auto budgets = ShareBudget(
      {.prompt_tokens = tokens, .size = size, .min_positions = min_positions, .floor = floor},
      multipliers);
  EXPECT_TRUE(budgets.ok()) << budgets.status();
  return budgets.value_or(LayerBudgets{});
}

// One random request and its multipliers.
class RandomCase {
 public:
  explicit RandomCase(uint64_t seed) : random_(seed) {
    layers = Pick({1, 2, 3, 5, 16, 28, 30, 32, 61, 80, 126});
    request.prompt_tokens =
        std::vector<int64_t>{Between(1, 40),      Between(1, 300), Between(1, 9000),
                             Between(1, 1000000), 1000000,         Between(1, kMaxPromptTokens),
                             kMaxPromptTokens}[Between(0, 6)];
    switch (Between(0, 4)) {
      case 0:
        request.size = TotalPositions{Between(1, 3 * layers * request.prompt_tokens)};
        break;
      case 1:
        request.size = Full{};
        break;
      default:
        request.size = Retention{std::max(1e-9, std::pow(Unit(), 2))};
    }
    request.min_positions = Pick({0, 0, 256, Between(0, 100000)});
    request.floor = Pick({1, 37, Between(1, 3000)});
    ripple.r = Pick({0, 1, 2}) == 0 ? 1.0 : std::pow(10.0, 6 * std::pow(Unit(), 3));
    ripple.gamma = std::pow(10.0, 6 * Unit());
    for (int64_t l = 0; l < layers; ++l) {
      // Steps, so that some layers are exactly alike.
      sensitivity.push_back(static_cast<double>(Between(0, 50)) * 1e-4);
    }
    multipliers = *Multipliers(ripple, sensitivity, static_cast<int>(layers));
  }

  int64_t layers = 0;
  BudgetRequest request;
  RippleAllocator ripple;
  std::vector<double> sensitivity;
  std::vector<double> multipliers;

 private:
  int64_t Between(int64_t min, int64_t max) {
    return min + static_cast<int64_t>(random_() % static_cast<uint64_t>(max - min + 1));
  }
  int64_t Pick(std::vector<int64_t> values) {
    return values[static_cast<size_t>(Between(0, static_cast<int64_t>(values.size()) - 1))];
  }
  double Unit() { return std::ldexp(static_cast<double>(random_() >> 11), -53); }

  std::mt19937_64 random_;
};

// x_l = clamp(lambda * w_l, floor, cap) with sum `total`, lambda by bisection.
std::vector<long double> SlowShares(int64_t total, int64_t floor, int64_t cap,
                                    const std::vector<double>& multipliers) {
  const auto shares = [&](long double lambda) {
    std::vector<long double> x;
    for (double w : multipliers) {
      x.push_back(std::clamp<long double>(lambda * w, floor, cap));
    }
    return x;
  };
  long double low = 0, high = static_cast<long double>(cap) * 1e7L;
  for (int i = 0; i < 120; ++i) {
    const long double middle = (low + high) / 2;
    const std::vector<long double> x = shares(middle);
    (std::accumulate(x.begin(), x.end(), 0.0L) < total ? low : high) = middle;
  }
  return shares(high);
}

TEST(BudgetsTest, MatchesExactRationalArithmetic) {
  int cases = 0;
  for (const std::vector<std::string>& line : ReadGoldenFile("budgets_golden.txt")) {
    BudgetRequest request{.prompt_tokens = std::stoll(line[0]),
                          .size = Full{},
                          .min_positions = std::stoll(line[3]),
                          .floor = std::stoll(line[4])};
    if (line[1] == "retention") request.size = Retention{std::stod(line[2])};
    if (line[1] == "total") request.size = TotalPositions{std::stoll(line[2])};
    const size_t layers = std::stoul(line[5]);
    std::vector<double> multipliers;
    for (size_t l = 0; l < layers; ++l) multipliers.push_back(std::stod(line[6 + l]));
    const size_t right = 6 + layers + 1;
    LayerBudgets expected;
    expected.requested = std::stoll(line[right]);
    expected.total = std::stoll(line[right + 1]);
    expected.raised = line[right + 2] == "1";
    expected.clamped = line[right + 3] == "1";
    expected.full = line[right + 4] == "1";
    for (size_t l = 0; l < layers; ++l) expected.layer.push_back(std::stoll(line[right + 5 + l]));

    const auto budgets = ShareBudget(request, multipliers);
    ASSERT_TRUE(budgets.ok()) << budgets.status();
    EXPECT_EQ(budgets->layer, expected.layer) << "case " << cases;
    EXPECT_EQ(*budgets, expected) << "case " << cases;
    ++cases;
  }
  EXPECT_EQ(cases, 600);
}

TEST(BudgetsTest, RandomRequestsKeepEveryPromise) {
  int clamped = 0, raised = 0, full = 0, at_cap = 0, at_floor = 0;
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    SCOPED_TRACE(seed);
    const RandomCase c(seed);
    const int64_t tokens = c.request.prompt_tokens;
    const int64_t floor = std::min(c.request.floor, tokens);
    const auto budgets = ShareBudget(c.request, c.multipliers);
    ASSERT_TRUE(budgets.ok()) << budgets.status();

    // B: raised, clamped, and said.
    const int64_t low = c.layers * floor, high = c.layers * tokens;
    const int64_t wanted =
        std::max(budgets->requested, c.layers * std::min(c.request.min_positions, tokens));
    ASSERT_EQ(budgets->total, std::min(std::max(wanted, low), high));
    ASSERT_EQ(budgets->clamped, wanted < low || wanted > high);
    ASSERT_EQ(budgets->raised, wanted > budgets->requested);
    ASSERT_EQ(budgets->full, budgets->total == high);
    if (const auto* retention = std::get_if<Retention>(&c.request.size)) {
      const long double exact = static_cast<long double>(retention->fraction) * tokens;
      ASSERT_EQ(budgets->requested % c.layers, 0);
      ASSERT_LE(budgets->requested / c.layers, exact + 2e-6L);
      ASSERT_GT(budgets->requested / c.layers, exact - 1);
    }

    // The integers.
    ASSERT_EQ(budgets->layer.size(), static_cast<size_t>(c.layers));
    int64_t sum = 0;
    for (int64_t b : budgets->layer) {
      ASSERT_GE(b, floor);
      ASSERT_LE(b, tokens);
      at_cap += b == tokens;
      at_floor += b == floor;
      sum += b;
    }
    ASSERT_EQ(sum, budgets->total);

    // Monotone in s; layers that are alike differ by one at most, the lower one ahead.
    for (int64_t a = 0; a < c.layers; ++a) {
      for (int64_t b = 0; b < c.layers; ++b) {
        if (c.sensitivity[a] > c.sensitivity[b] && c.multipliers[a] > c.multipliers[b]) {
          ASSERT_GE(budgets->layer[a], budgets->layer[b]);
        }
        if (a < b && c.multipliers[a] == c.multipliers[b]) {
          ASSERT_GE(budgets->layer[a], budgets->layer[b]);
          ASSERT_LE(budgets->layer[a], budgets->layer[b] + 1);
        }
      }
    }

    // Within one position of the real-valued solution.
    const std::vector<long double> slow = SlowShares(budgets->total, floor, tokens, c.multipliers);
    for (int64_t l = 0; l < c.layers; ++l) {
      ASSERT_NEAR(static_cast<double>(budgets->layer[l] - slow[l]), 0.0,
                  1.0 + 1e-9 * static_cast<double>(tokens));
    }

    // r = 1 is uniform, bit for bit.
    if (c.ripple.r == 1.0) {
      const std::vector<double> uniform =
          *Multipliers(UniformAllocator{}, {}, static_cast<int>(c.layers));
      ASSERT_EQ(*budgets, *ShareBudget(c.request, uniform));
    }
    clamped += budgets->clamped;
    raised += budgets->raised;
    full += budgets->full;
  }
  // The cases reach every branch.
  for (int count : {clamped, raised, full, at_cap, at_floor}) EXPECT_GT(count, 500);
}

TEST(BudgetsTest, OnlyRatiosMatter) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const RandomCase c(seed);
    std::vector<double> scaled = c.multipliers;
    for (double& w : scaled) w *= 0x1p-40;
    ASSERT_EQ(*ShareBudget(c.request, c.multipliers), *ShareBudget(c.request, scaled));
    const std::vector<double> thirds(c.layers, 1.0 / 3);
    const std::vector<double> ones(c.layers, 1.0);
    ASSERT_EQ(*ShareBudget(c.request, thirds), *ShareBudget(c.request, ones));
  }
}

TEST(BudgetsTest, LargestModelsDoNotOverflow) {
  for (int64_t tokens : {int64_t{1000000}, kMaxPromptTokens}) {
    std::vector<double> multipliers(kMaxLayers);
    for (int l = 0; l < kMaxLayers; ++l) multipliers[l] = std::pow(1e6, l / (kMaxLayers - 1.0));
    for (double fraction : {1e-9, 0.1, 0.5, 0.999, 1.0}) {
      const LayerBudgets budgets = Share(tokens, Retention{fraction}, multipliers, 256, 37);
      EXPECT_EQ(std::accumulate(budgets.layer.begin(), budgets.layer.end(), int64_t{0}),
                budgets.total);
      EXPECT_GE(*std::min_element(budgets.layer.begin(), budgets.layer.end()), 37);
      EXPECT_LE(*std::max_element(budgets.layer.begin(), budgets.layer.end()), tokens);
      EXPECT_TRUE(std::is_sorted(budgets.layer.begin(), budgets.layer.end()));
    }
    const LayerBudgets all = Share(tokens, TotalPositions{INT64_MAX}, multipliers);
    EXPECT_TRUE(all.full && all.clamped);
    EXPECT_THAT(all.layer, Each(tokens));
  }
}

TEST(BudgetsTest, RetentionCountsAsWritten) {
  // Every fraction of two decimals of every length: floor(p * T / 100) in integers.
  for (int64_t tokens : {1, 3, 7, 10, 100, 999, 1000, 4096, 99999, 1000000}) {
    for (int64_t percent = 1; percent <= 100; ++percent) {
      const LayerBudgets budgets =
          Share(tokens, Retention{static_cast<double>(percent) / 100}, {1, 1});
      EXPECT_EQ(budgets.requested, 2 * (percent * tokens / 100)) << percent << " % of " << tokens;
    }
  }
  // A fraction computed from a count gives the count back.
  for (int64_t tokens : {257, 1027, 7919, 999983, 2147483647}) {
    for (int64_t kept : {int64_t{1}, int64_t{256}, tokens / 3, tokens - 1, tokens}) {
      const double fraction = static_cast<double>(kept) / static_cast<double>(tokens);
      EXPECT_EQ(Share(tokens, Retention{fraction}, {1}).requested, kept);
    }
  }
}

TEST(BudgetsTest, ShortPromptsAreNotCompressed) {
  const std::vector<double> multipliers = {0.5, 1.0, 1.5};
  EXPECT_TRUE(Share(256, Retention{0.1}, multipliers, 256, 37).full);
  EXPECT_FALSE(Share(257, Retention{0.1}, multipliers, 256, 37).full);
  EXPECT_TRUE(Share(37, Retention{0.1}, multipliers, 0, 37).full);
  EXPECT_FALSE(Share(38, Retention{0.1}, multipliers, 0, 37).full);
  EXPECT_TRUE(Share(100, TotalPositions{300}, multipliers).full);
  EXPECT_FALSE(Share(100, TotalPositions{299}, multipliers).full);
  EXPECT_TRUE(Share(1, Retention{1e-9}, multipliers).full);
  EXPECT_TRUE(Share(100000, Retention{1.0}, multipliers).full);
  EXPECT_TRUE(Share(100000, Full{}, multipliers).full);
}

TEST(BudgetsTest, SmallCasesByHand) {
  // 12 in proportion 1 : 2 : 3, no bound in the way.
  EXPECT_THAT(Share(100, TotalPositions{12}, {1, 2, 3}).layer, ElementsAre(2, 4, 6));
  // 10 of 3: remainders alike, the lower layer first.
  EXPECT_THAT(Share(100, TotalPositions{10}, {1, 1, 1}).layer, ElementsAre(4, 3, 3));
  EXPECT_THAT(Share(100, TotalPositions{11}, {1, 1, 1}).layer, ElementsAre(4, 4, 3));
  // The cap of 10 takes 5 from the last layer; 1 : 2 share 20 - 10.
  EXPECT_THAT(Share(10, TotalPositions{20}, {1, 2, 6}).layer, ElementsAre(3, 7, 10));
  // The floor of 4 gives to the first layer; 2 : 3 share 24 - 4.
  EXPECT_THAT(Share(100, TotalPositions{24}, {0.1, 2, 3}, 0, 4).layer, ElementsAre(4, 8, 12));
  // Too little for the floors, and said.
  const LayerBudgets clamped = Share(100, TotalPositions{5}, {1, 2, 3}, 0, 4);
  EXPECT_THAT(clamped.layer, ElementsAre(4, 4, 4));
  EXPECT_TRUE(clamped.clamped);
  EXPECT_EQ(clamped.requested, 5);
  EXPECT_EQ(clamped.total, 12);
}

TEST(BudgetsTest, ErrorsNameFieldValueAndRange) {
  struct Case {
    BudgetRequest request;
    std::vector<double> multipliers;
    const char* message;
  };
  const double nan = std::nan("");
  const std::vector<double> ones = {1, 1};
  for (const Case& c : std::vector<Case>{
           {{.prompt_tokens = 0, .size = Full{}},
            ones,
            "prompt_tokens is 0: must be between 1 and"},
           {{.prompt_tokens = -5, .size = Full{}}, ones, "prompt_tokens is -5"},
           {{.prompt_tokens = 1LL << 31, .size = Full{}}, ones, "prompt_tokens is 2147483648"},
           {{.prompt_tokens = 9, .size = Retention{0}},
            ones,
            "retention is 0: must be above 0 and"},
           {{.prompt_tokens = 9, .size = Retention{1.01}}, ones, "retention is 1.01"},
           {{.prompt_tokens = 9, .size = Retention{nan}}, ones, "retention is nan"},
           {{.prompt_tokens = 9, .size = TotalPositions{0}},
            ones,
            "total_positions is 0: must be at"},
           {{.prompt_tokens = 9, .size = Full{}, .min_positions = -1}, ones, "min_positions is -1"},
           {{.prompt_tokens = 9, .size = Full{}, .floor = 0},
            ones,
            "floor is 0: must be between 1"},
           {{.prompt_tokens = 9, .size = Full{}}, {}, "multipliers has 0 values: must have 1 to"},
           {{.prompt_tokens = 9, .size = Full{}}, {1, 0}, "multipliers[1] is 0: must be finite"},
           {{.prompt_tokens = 9, .size = Full{}}, {nan, 1}, "multipliers[0] is nan"},
           {{.prompt_tokens = 9, .size = Full{}}, {1, nan}, "multipliers[1] is nan"},
           {{.prompt_tokens = 9, .size = Full{}}, {1, INFINITY}, "must be finite"},
           {{.prompt_tokens = 9, .size = Full{}}, {1, 1e-13}, "multipliers[1] is 1e-13"},
       }) {
    const absl::Status status = ShareBudget(c.request, c.multipliers).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
  }
}

}  // namespace
}  // namespace ripplekv
