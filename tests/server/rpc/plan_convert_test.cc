#include "server/rpc/plan_convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace ripplekv {
namespace {

using testing::HasSubstr;

TEST(SizeFromProto, ReadsEachKind) {
  v1::CacheSize proto;
  EXPECT_FALSE(SizeFromProto(proto, "")->has_value());
  proto.set_retention(0.25);
  EXPECT_EQ(**SizeFromProto(proto, ""), Size(Retention{0.25}));
  proto.set_total_positions(900);
  EXPECT_EQ(**SizeFromProto(proto, ""), Size(TotalPositions{900}));
  proto.mutable_full();
  EXPECT_EQ(**SizeFromProto(proto, ""), Size(Full{}));
  proto.set_total_bytes(12345678901);
  EXPECT_EQ(**SizeFromProto(proto, ""), Size(TotalBytes{12345678901}));
  proto.set_target_mean_kl(0.05);
  EXPECT_EQ(**SizeFromProto(proto, ""), Size(TargetMeanKl{0.05}));
}

TEST(SizeFromProto, NamesFieldAndValue) {
  v1::CacheSize proto;
  for (const double retention : {0.0, -0.5, 1.5, std::numeric_limits<double>::quiet_NaN()}) {
    proto.set_retention(retention);
    const auto size = SizeFromProto(proto, "kv.size.");
    ASSERT_FALSE(size.ok()) << retention;
    EXPECT_THAT(std::string(size.status().message()), testing::StartsWith("kv.size.retention is "));
  }
  proto.set_total_positions(0);
  EXPECT_THAT(std::string(SizeFromProto(proto, "kv.size.").status().message()),
              HasSubstr("kv.size.total_positions is 0"));
  proto.set_total_bytes(0);
  EXPECT_THAT(std::string(SizeFromProto(proto, "kv.size.").status().message()),
              HasSubstr("kv.size.total_bytes is 0"));
  proto.set_target_mean_kl(-1);
  EXPECT_THAT(std::string(SizeFromProto(proto, "kv.size.").status().message()),
              HasSubstr("kv.size.target_mean_kl is -1"));
}

TEST(ToProto, ReadsBack) {
  for (const Size& size : {Size(Retention{0.1}), Size(TotalPositions{12345678901}), Size(Full{}),
                           Size(TotalBytes{1}), Size(TargetMeanKl{2})}) {
    EXPECT_EQ(**SizeFromProto(SizeToProto(size), ""), size);
  }
}

TEST(PlanToProto, SaysWhereThePlanComesFrom) {
  PlanSpec spec;
  spec.layers = 2;
  spec.size = Retention{0.3};
  spec.min_positions = 100;
  v1::Plan proto = PlanToProto(*Plan::Make(spec));
  EXPECT_EQ(proto.source(), v1::PLAN_SOURCE_UNIFORM);
  EXPECT_TRUE(proto.allocator().has_uniform());
  EXPECT_EQ(proto.size().retention(), 0.3);
  EXPECT_EQ(proto.min_positions(), 100);
  EXPECT_EQ(proto.floor_positions(), 4 + 32 + 1);
  EXPECT_THAT(proto.multipliers(), testing::ElementsAre(1, 1));

  spec.allocator = RippleAllocator{.r = 3};
  spec.sensitivity = {0, 1};
  EXPECT_EQ(PlanToProto(*Plan::Make(spec)).source(), v1::PLAN_SOURCE_INLINE);
  spec.profile_id = std::string(64, 'a');
  proto = PlanToProto(*Plan::Make(spec));
  EXPECT_EQ(proto.source(), v1::PLAN_SOURCE_PROFILE);
  EXPECT_EQ(proto.profile_id(), spec.profile_id);
  EXPECT_THAT(proto.multipliers(), testing::ElementsAre(0.5, 1.5));
  EXPECT_FALSE(proto.chooses_types());

  spec.allocator = PyramidAllocator{};
  proto = PlanToProto(*Plan::Make(spec));
  EXPECT_EQ(proto.source(), v1::PLAN_SOURCE_FIXED);
  EXPECT_TRUE(proto.multipliers().empty());
  EXPECT_TRUE(proto.profile_id().empty());

  spec.allocator = DamageCurvesAllocator{};
  spec.damage = {.prompt_tokens = 9,
                 .retentions = {0.5},
                 .rows = {{1}, {1}},
                 .types = {KvType::kInt8},
                 .storage = {{0}, {0}}};
  spec.kv_shape = {.kv_heads = 1, .head_dim = 64};
  spec.choose_types = true;
  EXPECT_TRUE(PlanToProto(*Plan::Make(spec)).chooses_types());
}

}  // namespace
}  // namespace ripplekv
