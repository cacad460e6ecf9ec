#include "calibration/measured_plan.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/calibration/example_profile.h"

namespace ripplekv {
namespace {

TEST(MeasuredPlanTest, NothingOfAnotherMeasurementStays) {
  PlanSpec spec;
  spec.layers = 3;
  spec.profile_id = "another";
  spec.local_response = {1, 2, 3};
  spec.damage = ExampleDamageProfile().damage.table;
  spec.size_curve = SizeCurveOf(ExampleSizeProfile());
  Profile profile = ExampleProfile();
  profile.local_response.clear();
  TakeMeasurements(profile, spec);
  EXPECT_EQ(spec.profile_id, profile.id());
  EXPECT_EQ(spec.sensitivity, profile.sensitivity);
  EXPECT_TRUE(spec.local_response.empty());
  EXPECT_TRUE(spec.damage.empty());
  EXPECT_TRUE(spec.size_curve.empty());
  TakeMeasurements(ExampleDamageProfile(), spec);
  EXPECT_EQ(spec.damage, ExampleDamageProfile().damage.table);
}

TEST(MeasuredPlanTest, TheCurveSaysWhatItWasMeasuredUnder) {
  const Profile profile = ExampleSizeProfile();
  PlanSpec spec;
  spec.layers = 3;
  spec.allocator = profile.key.settings.sizes.allocator;
  spec.selector = profile.key.settings.selector;
  spec.kv_types = KvTypes(KvType::kInt8, KvType::kInt4);
  spec.min_positions = 0;
  TakeMeasurements(profile, spec);
  EXPECT_TRUE(ValidateSizeCurve(spec.size_curve).ok());
  const auto plan = Plan::Make(spec);
  ASSERT_TRUE(plan.ok()) << plan.status();
  // Measured at 1,024 tokens: 0.25 nats at a retention of 0.1, 103 of 1,024 positions rounded up.
  const auto budgets = plan->BudgetsFor(1024, TargetMeanKl{0.25});
  ASSERT_TRUE(budgets.ok()) << budgets.status();
  EXPECT_EQ(budgets->total, 308);  // 3 * 102.4
  for (const int what : {0, 1, 2, 3}) {
    PlanSpec other = spec;
    if (what == 0) other.allocator = UniformAllocator{};
    if (what == 1) other.selector = SnapKv{};
    if (what == 2) other.kv_types = KvType::kInt8;
    if (what == 3) other.sinks = 5;
    EXPECT_EQ(Plan::Make(other)->BudgetsFor(1024, TargetMeanKl{0.25}).status().code(),
              absl::StatusCode::kFailedPrecondition)
        << what;
  }
}

TEST(MeasuredPlanTest, SizesAreMeasuredUnderTheSettingsPlan) {
  const Profile profile = ExampleSizeProfile();
  const KvShape shape = {.kv_heads = 2, .head_dim = 32};
  const auto plan = SizePlan(profile, shape);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->allocator(), profile.key.settings.sizes.allocator);
  EXPECT_EQ(plan->selector(), profile.key.settings.selector);
  EXPECT_EQ(plan->sinks(), profile.key.settings.sinks);
  EXPECT_EQ(plan->spec().sensitivity, profile.sensitivity);
  EXPECT_EQ(plan->spec().min_positions, 0);
  EXPECT_EQ(plan->spec().kv_shape, shape);
  EXPECT_FALSE(plan->chooses_types());
  EXPECT_EQ(plan->BudgetsFor(1000, Retention{0.1})->types[0],
            KvTypes(KvType::kInt8, KvType::kInt4));

  Profile damage = ExampleDamageProfile();
  damage.key.settings.sizes = profile.key.settings.sizes;
  damage.key.settings.sizes.allocator = DamageCurvesAllocator{};
  damage.key.settings.sizes.kv_types.reset();
  EXPECT_TRUE(SizePlan(damage, shape)->chooses_types());
  EXPECT_EQ(SizePlan(damage, shape)->spec().kv_types, kDearestChosen);
  damage.damage = {};
  EXPECT_EQ(SizePlan(damage, shape).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace ripplekv
