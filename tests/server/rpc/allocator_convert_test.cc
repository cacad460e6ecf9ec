#include "server/rpc/allocator_convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace ripplekv {
namespace {

using testing::HasSubstr;

const RippleAllocator kRipple = {.r = 3, .gamma = 8, .map = SignalMap::kRank};
const Allocators kDefaults = {.ripple = kRipple,
                              .shuffled_ripple = {kRipple, 11},
                              .isolated_damage = {kRipple, 0.25},
                              .pyramid = {7},
                              .damage_curves = {0.25}};

Allocator Read(const v1::Allocator& proto) { return **AllocatorFromProto(proto, kDefaults, ""); }

std::string Refused(const v1::Allocator& proto) {
  const auto allocator = AllocatorFromProto(proto, kDefaults, "kv.allocator.");
  EXPECT_EQ(allocator.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(allocator.status().message());
}

TEST(AllocatorFromProto, TakesTheServersParametersWhereAbsent) {
  v1::Allocator proto;
  EXPECT_FALSE(AllocatorFromProto(proto, kDefaults, "")->has_value());
  proto.mutable_ripple();
  EXPECT_EQ(Read(proto), Allocator(kRipple));
  proto.mutable_ripple()->set_r(2);
  proto.mutable_ripple()->set_map(v1::SIGNAL_MAP_LOG);
  EXPECT_EQ(Read(proto), Allocator(RippleAllocator{2, 8, SignalMap::kLog}));
  proto.mutable_ripple()->set_map(v1::SIGNAL_MAP_MIN_MAX);
  EXPECT_EQ(Read(proto), Allocator(RippleAllocator{2, 8, SignalMap::kMinMax}));
  proto.mutable_uniform();
  EXPECT_EQ(Read(proto), Allocator(UniformAllocator{}));
  proto.mutable_inverse_ripple();
  EXPECT_EQ(Read(proto), Allocator(InverseRippleAllocator{kRipple}));
  proto.mutable_shuffled_ripple();
  EXPECT_EQ(Read(proto), Allocator(ShuffledRippleAllocator{kRipple, 11}));
  proto.mutable_shuffled_ripple()->set_seed(0);
  EXPECT_EQ(Read(proto), Allocator(ShuffledRippleAllocator{kRipple, 0}));
  proto.mutable_isolated_damage();
  EXPECT_EQ(Read(proto), Allocator(IsolatedDamageAllocator{kRipple, 0.25}));
  proto.mutable_isolated_damage()->mutable_ripple()->set_gamma(2);
  EXPECT_EQ(Read(proto), Allocator(IsolatedDamageAllocator{{3, 2, SignalMap::kRank}, 0.25}));
  proto.mutable_local_response();
  EXPECT_EQ(Read(proto), Allocator(LocalResponseAllocator{kRipple}));
  proto.mutable_pyramid();
  EXPECT_EQ(Read(proto), Allocator(PyramidAllocator{7}));
  proto.mutable_damage_curves();
  EXPECT_EQ(Read(proto), Allocator(DamageCurvesAllocator{0.25}));
}

TEST(AllocatorFromProto, NamesFieldAndValue) {
  v1::Allocator proto;
  // A zero that is there is a value, and out of range.
  proto.mutable_ripple()->set_gamma(0);
  EXPECT_THAT(Refused(proto), HasSubstr("kv.allocator.ripple.gamma is 0"));
  proto.mutable_ripple()->set_gamma(1);
  proto.mutable_ripple()->set_map(static_cast<v1::SignalMap>(17));
  EXPECT_THAT(Refused(proto),
              HasSubstr("kv.allocator.ripple.map is 17: must be minmax, log or rank"));
  proto.mutable_inverse_ripple()->mutable_ripple()->set_r(0);
  EXPECT_THAT(Refused(proto), HasSubstr("kv.allocator.inverse_ripple.ripple.r is 0"));
  proto.mutable_isolated_damage()->set_retention(1);
  EXPECT_THAT(Refused(proto), HasSubstr("kv.allocator.isolated_damage.retention is 1"));
  proto.mutable_pyramid()->set_beta(0);
  EXPECT_THAT(Refused(proto), HasSubstr("kv.allocator.pyramid.beta is 0"));
  proto.mutable_multipliers()->add_multipliers(-1);
  EXPECT_THAT(Refused(proto), HasSubstr("kv.allocator.multipliers.multipliers[0] is -1"));
  proto.mutable_positions();
  EXPECT_THAT(Refused(proto), HasSubstr("kv.allocator.positions.positions has 0 values"));
}

TEST(AllocatorToProto, ReadsBack) {
  for (const SignalMap map : {SignalMap::kMinMax, SignalMap::kLog, SignalMap::kRank}) {
    const RippleAllocator ripple{.r = 1.25, .gamma = 4, .map = map};
    for (const Allocator& allocator : std::vector<Allocator>{
             ripple, UniformAllocator{}, SqrtAllocator{}, InverseRippleAllocator{ripple},
             ShuffledRippleAllocator{ripple, 9}, IsolatedDamageAllocator{ripple, 0.5},
             LocalResponseAllocator{ripple}, PyramidAllocator{30}, MultipliersAllocator{{1, 0.25}},
             PositionsAllocator{{7, 8, 9}}, DamageCurvesAllocator{0.5}}) {
      EXPECT_EQ(Read(AllocatorToProto(allocator)), allocator);
    }
  }
}

}  // namespace
}  // namespace ripplekv
