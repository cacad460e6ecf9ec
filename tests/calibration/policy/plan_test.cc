#include "calibration/policy/plan.h"

#include <numeric>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ripplekv {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

PlanSpec Spec() {
  PlanSpec spec;
  spec.layers = 3;
  spec.allocator = RippleAllocator{.r = 2.0};
  spec.size = Retention{0.1};
  spec.min_positions = 0;
  spec.sensitivity = {0.0, 0.5, 1.0};
  spec.profile_id = std::string(64, 'a');
  return spec;
}

TEST(PlanTest, SharesByTheProfile) {
  const Plan plan = *Plan::Make(Spec());
  EXPECT_TRUE(plan.from_profile());
  EXPECT_EQ(plan.floor(), 4 + 32 + 1);
  const LayerBudgets budgets = *plan.BudgetsFor(4000);
  // 1200 in proportion 1 : sqrt 2 : 2.
  EXPECT_THAT(budgets.layer, ElementsAre(272, 384, 544));
  EXPECT_EQ(budgets.total, 1200);
}

TEST(PlanTest, SaysWhatRowsAreStoredInAndTheirBytes) {
  PlanSpec spec = Spec();
  spec.kv_types = {KvType::kInt8, KvType::kInt4};
  EXPECT_EQ(Plan::Make(spec)->BudgetsFor(4000)->bytes, 0);
  spec.kv_shape = {.kv_heads = 3, .head_dim = 64};
  const LayerBudgets budgets = *Plan::Make(spec)->BudgetsFor(4000);
  EXPECT_THAT(budgets.types, ElementsAre(spec.kv_types, spec.kv_types, spec.kv_types));
  // A KV head's row: 64 bytes and a scale of 4; 32 bytes and two groups' scale and minimum of 4; a
  // position of 4.
  EXPECT_EQ(budgets.bytes, 1200 * 3 * (64 + 4 + 32 + 2 * 4 + 4));
}

TEST(PlanTest, RequestsOverrideSizeAllocatorAndSelector) {
  const Plan plan = *Plan::Make(Spec());
  EXPECT_EQ(plan.BudgetsFor(4000, TotalPositions{900})->total, 900);
  EXPECT_TRUE(plan.BudgetsFor(4000, Full{})->full);
  const Plan uniform = *plan.With(UniformAllocator{}, SnapKv{.window = 8});
  EXPECT_FALSE(uniform.from_profile());
  EXPECT_EQ(uniform.floor(), 4 + 8 + 1);
  EXPECT_THAT(uniform.BudgetsFor(4000)->layer, Each(400));
  const Plan back = *uniform.With(RippleAllocator{.r = 2.0}, SnapKv{});
  EXPECT_EQ(*back.BudgetsFor(4000), *plan.BudgetsFor(4000));
}

TEST(PlanTest, RippleWithROneEqualsUniform) {
  PlanSpec spec = Spec();
  spec.allocator = RippleAllocator{.r = 1.0};
  const Plan ripple = *Plan::Make(spec);
  const Plan uniform = *ripple.With(UniformAllocator{}, std::nullopt);
  EXPECT_EQ(ripple.multipliers(), uniform.multipliers());
  for (int64_t tokens = 1; tokens < 3000; tokens += 7) {
    EXPECT_EQ(*ripple.BudgetsFor(tokens), *uniform.BudgetsFor(tokens));
  }
}

TEST(PlanTest, BudgetsDependOnThePromptAlone) {
  // A plan holds no state: lengths in any order give the same budgets.
  const Plan plan = *Plan::Make(Spec());
  const LayerBudgets first = *plan.BudgetsFor(5000);
  EXPECT_TRUE(plan.BudgetsFor(20)->full);
  EXPECT_EQ(*plan.BudgetsFor(5000), first);
}

TEST(PlanTest, RippleWithoutAProfileIsRefused) {
  PlanSpec spec = Spec();
  spec.sensitivity.clear();
  EXPECT_EQ(Plan::Make(spec).status().code(), absl::StatusCode::kFailedPrecondition);
  spec.allocator = UniformAllocator{};
  const Plan plan = *Plan::Make(spec);
  const absl::Status status = plan.With(RippleAllocator{}, std::nullopt).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("calibrate the model"));
}

TEST(PlanTest, ErrorsNameFieldValueAndRange) {
  const auto message = [](auto change) {
    PlanSpec spec = Spec();
    change(spec);
    const absl::Status status = Plan::Make(spec).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message([](PlanSpec& s) { s.layers = 4; }), HasSubstr("sensitivity has 3 values"));
  EXPECT_EQ(message([](PlanSpec& s) { s.size = Retention{2}; }),
            "retention is 2: must be above 0 and at most 1");
  EXPECT_EQ(message([](PlanSpec& s) { s.sinks = -1; }), "sinks is -1: must be between 0 and 1024");
  EXPECT_EQ(message([](PlanSpec& s) { s.sinks = 1025; }),
            "sinks is 1025: must be between 0 and 1024");
  EXPECT_THAT(message([](PlanSpec& s) { s.min_positions = -1; }), HasSubstr("min_positions is -1"));
  EXPECT_THAT(message([](PlanSpec& s) { s.selector = SnapKv{.kernel = 2}; }),
              HasSubstr("snapkv.kernel is 2"));
  EXPECT_THAT(message([](PlanSpec& s) { s.allocator = RippleAllocator{.r = 0}; }),
              HasSubstr("ripple.r is 0"));
  EXPECT_EQ(Plan::Make(Spec())->BudgetsFor(0).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ripplekv
