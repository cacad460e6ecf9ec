#include "calibration/policy/plan.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

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
  spec.kv_types = KvTypes(KvType::kInt8, KvType::kInt4);
  EXPECT_EQ(Plan::Make(spec)->BudgetsFor(4000)->bytes, 0);
  spec.kv_shape = {.kv_heads = 3, .head_dim = 64};
  const LayerBudgets budgets = *Plan::Make(spec)->BudgetsFor(4000);
  EXPECT_THAT(budgets.types, Each(spec.kv_types));
  // A KV head's row: 64 bytes and a scale of 4; 32 bytes and two groups' scale and minimum of 4; a
  // position of 4.
  EXPECT_EQ(budgets.bytes, 1200 * 3 * (64 + 4 + 32 + 2 * 4 + 4));
}

TEST(PlanTest, RequestsOverrideWhatRowsAreStoredIn) {
  const Plan plan = *Plan::Make(Spec());
  const KvTypes types(KvType::kInt4, KvType::kInt8);
  const LayerBudgets other = plan.With({}, {}, types)->BudgetsFor(4000).value();
  EXPECT_THAT(other.types, ElementsAre(types, types, types));
  EXPECT_EQ(other.layer, plan.BudgetsFor(4000)->layer);
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

DamageTable Damage() {
  DamageTable table;
  table.prompt_tokens = 1000;
  table.retentions = {0.1, 0.5};
  table.rows = {{0.1, 0.01}, {0.4, 0.2}, {1.0, 0.05}};
  table.types = {KvType::kInt8, {KvType::kInt8, KvType::kInt4}, KvType::kInt4, KvType::kF32};
  table.storage = {{0.0, 0.001, 0.002, 0.0}, {0.0, 0.002, 0.9, 0.0}, {0.0001, 0.003, 0.004, 0.0}};
  return table;
}

// Of everything that a calibration may measure.
PlanSpec Measured() {
  PlanSpec spec = Spec();
  spec.local_response = {3, 2, 1};
  spec.damage = Damage();
  spec.kv_shape = {.kv_heads = 3, .head_dim = 64};
  return spec;
}

std::vector<Allocator> EveryAllocator() {
  return {RippleAllocator{},        UniformAllocator{},        SqrtAllocator{},
          InverseRippleAllocator{}, ShuffledRippleAllocator{}, IsolatedDamageAllocator{},
          LocalResponseAllocator{}, PyramidAllocator{},        MultipliersAllocator{{1, 2, 3}},
          DamageCurvesAllocator{}};
}

TEST(PlanTest, EveryAllocatorKeepsTheSumAndTheBounds) {
  for (const Allocator& allocator : EveryAllocator()) {
    SCOPED_TRACE(AllocatorName(allocator));
    PlanSpec spec = Measured();
    spec.allocator = allocator;
    const Plan plan = *Plan::Make(spec);
    EXPECT_EQ(plan.multipliers().empty(), !HasMultipliers(allocator));
    for (int64_t tokens : {1, 36, 37, 38, 100, 999, 4000, 100000}) {
      for (const Size& size :
           std::vector<Size>{Retention{0.01}, Retention{0.1}, Retention{0.37}, TotalPositions{1234},
                             TotalBytes{999999}, Retention{1}, Full{}}) {
        const LayerBudgets budgets = *plan.BudgetsFor(tokens, size);
        ASSERT_EQ(budgets.layer.size(), 3u);
        EXPECT_EQ(std::accumulate(budgets.layer.begin(), budgets.layer.end(), int64_t{0}),
                  budgets.total);
        for (int64_t b : budgets.layer) {
          EXPECT_GE(b, std::min<int64_t>(37, tokens));
          EXPECT_LE(b, tokens);
        }
        EXPECT_EQ(budgets.bytes, budgets.total * 3 * (2 * 128 + 4));
        EXPECT_THAT(budgets.types, ElementsAre(KvType::kBf16, KvType::kBf16, KvType::kBf16));
        if (size == Size(Retention{1}) || size == Size(Full{})) {
          EXPECT_THAT(budgets.layer, Each(tokens));
          EXPECT_TRUE(budgets.full);
        }
        const LayerBudgets uniform =
            *plan.With(UniformAllocator{}, std::nullopt)->BudgetsFor(tokens, size);
        EXPECT_EQ(budgets.total, uniform.total);
        EXPECT_EQ(budgets.requested, uniform.requested);
        EXPECT_EQ(budgets.clamped, uniform.clamped);
      }
    }
  }
}

TEST(PlanTest, SignalsAreThoseOfTheAllocator) {
  const Plan plan = *Plan::Make(Measured());
  const auto multipliers = [&](const Allocator& allocator) {
    return plan.With(allocator, std::nullopt)->multipliers();
  };
  const RippleAllocator ripple{.r = 4};
  EXPECT_EQ(multipliers(LocalResponseAllocator{ripple}), *Multipliers(ripple, {3, 2, 1}, 3));
  EXPECT_EQ(multipliers(IsolatedDamageAllocator{ripple, 0.1}),
            *Multipliers(ripple, {0.1, 0.4, 1.0}, 3));
  EXPECT_EQ(multipliers(IsolatedDamageAllocator{ripple, 0.5}),
            *Multipliers(ripple, {0.01, 0.2, 0.05}, 3));
}

TEST(PlanTest, PyramidCountsTheSelectorsWindow) {
  PlanSpec spec = Measured();
  spec.allocator = PyramidAllocator{.beta = 20};
  // base 400 - 32 = 368, low 18.4, high 717.6, and the window of 32 everywhere.
  EXPECT_THAT(Plan::Make(spec)->BudgetsFor(4000)->layer, ElementsAre(750, 400, 50));
}

TEST(PlanTest, GivenPositionsAreTakenAsTheyAre) {
  PlanSpec spec = Measured();
  spec.allocator = PositionsAllocator{{500, 10, 80}};
  spec.min_positions = 100;
  const Plan plan = *Plan::Make(spec);
  const LayerBudgets budgets = *plan.BudgetsFor(400);
  EXPECT_THAT(budgets.layer, ElementsAre(400, 37, 80));
  EXPECT_EQ(budgets.total, 517);
  EXPECT_EQ(budgets.requested, 590);
  EXPECT_TRUE(budgets.clamped && !budgets.raised && !budgets.full);
  const LayerBudgets shorter = *plan.BudgetsFor(100);
  EXPECT_THAT(shorter.layer, Each(100));
  EXPECT_TRUE(shorter.raised && shorter.full);
  EXPECT_FALSE(plan.BudgetsFor(0).ok());
}

TEST(PlanTest, BytesOfFixedTypesBuyWholeRows) {
  PlanSpec spec = Measured();
  spec.kv_types = KvTypes(KvType::kInt8);
  const int64_t row = 3 * (2 * (64 + 4) + 4);
  const LayerBudgets budgets = *Plan::Make(spec)->BudgetsFor(4000, TotalBytes{900 * row + row - 1});
  EXPECT_EQ(budgets.total, 900);
  EXPECT_EQ(budgets.bytes, 900 * row);
  EXPECT_EQ(budgets.byte_budget, 0);
  spec.kv_shape = {};
  const absl::Status status = Plan::Make(spec)->BudgetsFor(4000, TotalBytes{9}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("give retention or total_positions"));
}

TEST(PlanTest, ChoosesTypesWithinTheBytes) {
  PlanSpec spec = Measured();
  spec.choose_types = true;
  spec.allocator = DamageCurvesAllocator{};
  const Plan plan = *Plan::Make(spec);
  EXPECT_TRUE(plan.chooses_types());
  const int64_t row = 3 * (2 * 128 + 4);
  bool mixed = false;
  for (int64_t tokens : {500, 4000, 100000}) {
    double before = 1e9;
    for (double retention : {0.08, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0}) {
      const LayerBudgets budgets = *plan.BudgetsFor(tokens, Retention{retention});
      const int64_t asked = 3 * static_cast<int64_t>(retention * tokens + 1e-6);
      EXPECT_EQ(budgets.requested, asked);
      EXPECT_EQ(budgets.byte_budget, asked * row);
      int64_t bytes = 0, rows = 0;
      double damage = 0;
      const DamageTable table = Damage();
      for (size_t l = 0; l < 3; ++l) {
        const KvTypes types = budgets.types[l];
        bytes += budgets.layer[l] * spec.kv_shape.RowBytes(types);
        rows += budgets.layer[l];
        damage += DamageCurve(table.retentions, table.rows[l])
                      .At(static_cast<double>(budgets.layer[l]) / static_cast<double>(tokens));
        for (size_t t = 0; t < table.types.size(); ++t) {
          if (table.types[t] == types) damage += table.storage[l][t];
        }
        EXPECT_FALSE(types == KvTypes(KvType::kF32)) << "more bytes than lose nothing";
      }
      EXPECT_EQ(budgets.bytes, bytes);
      EXPECT_EQ(budgets.total, rows);
      EXPECT_LE(bytes, budgets.byte_budget);
      EXPECT_GE(rows, asked);
      EXPECT_LE(damage, before);
      before = damage;
      mixed = mixed || !(budgets.types[0] == budgets.types[1]);
    }
    EXPECT_EQ(before, 0);
    EXPECT_THAT(plan.BudgetsFor(tokens, Full{})->types, Each(KvTypes(KvType::kBf16)));
    EXPECT_TRUE(plan.BudgetsFor(tokens, Full{})->full);
    const LayerBudgets exact = *plan.BudgetsFor(tokens, TotalBytes{123456});
    EXPECT_EQ(exact.byte_budget, 123456);
    EXPECT_LE(exact.bytes, 123456);
    EXPECT_EQ(*plan.BudgetsFor(tokens, TotalPositions{150}),
              *plan.BudgetsFor(tokens, TotalPositions{150}));
    const LayerBudgets least = *plan.BudgetsFor(tokens, TotalBytes{1});
    EXPECT_TRUE(least.clamped);
    EXPECT_THAT(least.layer, Each(37));
    EXPECT_THAT(least.types, Each(KvTypes(KvType::kInt4)));
  }
  EXPECT_TRUE(mixed);
  // Layer 1 loses too much in four bits.
  EXPECT_FALSE(plan.BudgetsFor(4000, Retention{0.2})->types[1] == KvTypes(KvType::kInt4));
  // Another allocator takes the plan's own type.
  EXPECT_THAT(plan.With(UniformAllocator{}, std::nullopt)->BudgetsFor(4000)->types,
              Each(KvTypes(KvType::kBf16)));
  // So does a request that names types.
  EXPECT_THAT(
      plan.With(std::nullopt, std::nullopt, KvTypes(KvType::kInt8))->BudgetsFor(4000)->types,
      Each(KvTypes(KvType::kInt8)));
  spec.min_positions = 256;
  const LayerBudgets shorter = *Plan::Make(spec)->BudgetsFor(256);
  EXPECT_TRUE(shorter.full && shorter.raised);
  EXPECT_THAT(shorter.types, Each(KvTypes(KvType::kBf16)));
}

TEST(PlanTest, ChoosesNothingDearerThanItsOwnTypes) {
  PlanSpec spec = Measured();
  spec.choose_types = true;
  spec.allocator = DamageCurvesAllocator{};
  spec.kv_types = KvType::kInt8;
  const int64_t row = 3 * (2 * (64 + 4) + 4);
  const Plan plan = *Plan::Make(spec);
  const LayerBudgets budgets = *plan.BudgetsFor(4000, Retention{0.2});
  EXPECT_EQ(budgets.byte_budget, 3 * 800 * row);
  EXPECT_LE(budgets.bytes, budgets.byte_budget);
  for (const KvTypes types : budgets.types) EXPECT_LE(spec.kv_shape.RowBytes(types), row);
  EXPECT_GT(budgets.total, 3 * 800);
  // Everything that fits is kept in them, although another type was measured to lose no more.
  spec.damage.storage[2] = {0.0001, 0.0001, 0.0001, 0.0};
  for (const Size& all : {Size(Full{}), Size(Retention{1})}) {
    const LayerBudgets full = *Plan::Make(spec)->BudgetsFor(4000, all);
    EXPECT_TRUE(full.full);
    EXPECT_THAT(full.types, Each(KvTypes(KvType::kInt8)));
    EXPECT_EQ(full.bytes, 3 * 4000 * row);
  }
  spec.kv_types = KvTypes(KvType::kInt4, KvType::kInt8);
  const absl::Status status = Plan::Make(spec).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("keys in int4 and values in int8"));
}

TEST(PlanTest, DamageCurvesLeaveEveryLayerItsShare) {
  PlanSpec spec = Measured();
  // Layer 0 has next to nothing to lose.
  spec.damage.rows[0] = {1e-6, 1e-7};
  spec.allocator = DamageCurvesAllocator{};
  EXPECT_EQ(Plan::Make(spec)->BudgetsFor(4000)->layer[0], 37);
  for (const bool chooses : {false, true}) {
    spec.choose_types = chooses;
    spec.allocator = DamageCurvesAllocator{.least_share = 0.5};
    const LayerBudgets half = *Plan::Make(spec)->BudgetsFor(4000);
    EXPECT_EQ(half.layer[0], 200);
    EXPECT_LE(half.bytes, 1200 * 3 * (2 * 128 + 4));
    EXPECT_THAT(half.layer, Each(testing::Ge(200)));
    spec.allocator = DamageCurvesAllocator{.least_share = 1};
    EXPECT_THAT(Plan::Make(spec)->BudgetsFor(4000)->layer, Each(testing::Ge(400)));
  }
  spec.choose_types = false;
  EXPECT_THAT(Plan::Make(spec)->BudgetsFor(4000)->layer, Each(400));
}

TEST(PlanTest, MeetsATargetMeanKl) {
  PlanSpec spec = Measured();
  spec.size_curve.allocator = spec.allocator;
  spec.size_curve.kv_types = spec.kv_types;
  spec.size_curve.selector = spec.selector;
  spec.size_curve.prompt_tokens = {1000};
  spec.size_curve.retentions = {0.1, 0.2};
  spec.size_curve.mean_kl = {{0.4, 0.1}};
  EXPECT_EQ(Plan::Make(spec)->BudgetsFor(1000, TargetMeanKl{0.1})->total, 600);
  spec.size = TargetMeanKl{0.2};
  const Plan plan = *Plan::Make(spec);
  EXPECT_EQ(plan.BudgetsFor(1000)->total, 425);  // 300 sqrt 2 = 424.3
  EXPECT_EQ(plan.BudgetsFor(1000, Retention{0.5})->total, 1500);
  const auto refused = [](const absl::StatusOr<LayerBudgets>& budgets) {
    EXPECT_EQ(budgets.status().code(), absl::StatusCode::kFailedPrecondition);
    return std::string(budgets.status().message());
  };
  EXPECT_THAT(refused(plan.With(UniformAllocator{}, std::nullopt)->BudgetsFor(1000)),
              HasSubstr("measured with another allocator (ripple, not uniform)"));
  EXPECT_THAT(refused(plan.With(RippleAllocator{.r = 99}, std::nullopt)->BudgetsFor(1000)),
              HasSubstr("another allocator (ripple with other parameters)"));
  EXPECT_THAT(
      refused(plan.With(std::nullopt, std::nullopt, KvTypes(KvType::kInt8))->BudgetsFor(1000)),
      HasSubstr("type of rows (bf16 keys and bf16 values, not int8 keys and int8 values)"));
  EXPECT_THAT(refused(plan.With(std::nullopt, SnapKv{.window = 8})->BudgetsFor(1000)),
              HasSubstr("another selector (snapkv with other parameters)"));
  EXPECT_THAT(refused(plan.With(std::nullopt, H2o{})->BudgetsFor(1000)),
              HasSubstr("another selector (snapkv, not h2o)"));
  spec.size_curve.sinks = 9;
  EXPECT_THAT(refused(Plan::Make(spec)->BudgetsFor(1000)),
              HasSubstr("another number of sinks (9, not 4)"));
  spec.size_curve = {};
  EXPECT_THAT(refused(Plan::Make(spec)->BudgetsFor(1000)),
              HasSubstr("calibrate the model with --calibration-sizes (size_examples), or give "
                        "retention, total_positions or total_bytes instead"));
}

TEST(PlanTest, SaysWhatIsNotMeasured) {
  const auto refused = [](Allocator allocator, auto change) {
    PlanSpec spec = Measured();
    spec.allocator = std::move(allocator);
    change(spec);
    const absl::Status status = Plan::Make(spec).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    return std::string(status.message());
  };
  EXPECT_THAT(refused(SqrtAllocator{}, [](PlanSpec& s) { s.sensitivity.clear(); }),
              HasSubstr("the sqrt allocator needs a sensitivity profile"));
  EXPECT_THAT(refused(LocalResponseAllocator{}, [](PlanSpec& s) { s.local_response.clear(); }),
              HasSubstr("the local_response allocator needs a profile's local response"));
  EXPECT_THAT(refused(DamageCurvesAllocator{}, [](PlanSpec& s) { s.damage = {}; }),
              HasSubstr("calibrate the model with --calibration-damage"));
  EXPECT_THAT(refused(IsolatedDamageAllocator{}, [](PlanSpec& s) { s.damage.rows.clear(); }),
              HasSubstr("calibrate the model with --calibration-damage"));
  EXPECT_THAT(refused(IsolatedDamageAllocator{.retention = 0.05}, [](PlanSpec&) {}),
              HasSubstr("the smallest that the profile measured is 0.1"));
  EXPECT_THAT(refused(DamageCurvesAllocator{},
                      [](PlanSpec& s) {
                        s.choose_types = true;
                        s.damage.storage.clear();
                      }),
              HasSubstr("(damage_storage), or name a type"));
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
  EXPECT_EQ(message([](PlanSpec& s) { s.size = TotalBytes{0}; }),
            "total_bytes is 0: must be at least 1");
  EXPECT_EQ(message([](PlanSpec& s) { s.size = TargetMeanKl{0}; }),
            "target_mean_kl is 0: must be above 0 and finite");
  EXPECT_THAT(message([](PlanSpec& s) { s.local_response = {1}; }),
              HasSubstr("local_response has 1 values: must have one for each of the 3 layers"));
  EXPECT_THAT(message([](PlanSpec& s) { s.damage = Damage(), s.damage.rows.pop_back(); }),
              HasSubstr("damage.rows has 2 layers: must have 3"));
  EXPECT_THAT(message([](PlanSpec& s) { s.allocator = MultipliersAllocator{{1, 2}}; }),
              HasSubstr("multipliers has 2 values: must have one for each of the 3 layers"));
  EXPECT_THAT(message([](PlanSpec& s) { s.allocator = PositionsAllocator{{1, 2}}; }),
              HasSubstr("positions has 2 values: must have one for each of the 3 layers"));
  EXPECT_EQ(Plan::Make(Spec())->BudgetsFor(0).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ripplekv
