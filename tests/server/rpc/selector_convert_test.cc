#include "server/rpc/selector_convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace ripplekv {
namespace {

const SnapKv kSnapKv = {.window = 16, .kernel = 5, .pooling = Pooling::kMean};
const Selectors kDefaults = {
    .snapkv = kSnapKv,
    .h2o = {.window = 17, .queries = 100, .normalised = true},
    .recent_attention = {.window = 18, .queries = 101, .kernel = 9, .pooling = Pooling::kMax},
    .mixed = {.snapkv = kSnapKv, .queries = 102, .weight = 0.75},
    .streaming_llm = {.window = 19},
    .random = {.window = 20, .seed = 1234567890123},
};

SelectorSpec Read(const v1::Selector& proto) {
  const auto selector = SelectorFromProto(proto, kDefaults, "");
  EXPECT_TRUE(selector.ok() && selector->has_value()) << selector.status();
  return **selector;
}

TEST(SelectorFromProto, TakesTheServersParametersWhereAbsent) {
  v1::Selector proto;
  EXPECT_FALSE(SelectorFromProto(proto, kDefaults, "")->has_value());
  proto.mutable_snapkv();
  EXPECT_EQ(Read(proto), SelectorSpec(kDefaults.snapkv));
  proto.mutable_h2o();
  EXPECT_EQ(Read(proto), SelectorSpec(kDefaults.h2o));
  proto.mutable_recent_attention();
  EXPECT_EQ(Read(proto), SelectorSpec(kDefaults.recent_attention));
  proto.mutable_mixed();
  EXPECT_EQ(Read(proto), SelectorSpec(kDefaults.mixed));
  proto.mutable_streaming_llm();
  EXPECT_EQ(Read(proto), SelectorSpec(kDefaults.streaming_llm));
  proto.mutable_random();
  EXPECT_EQ(Read(proto), SelectorSpec(kDefaults.random));
}

TEST(SelectorFromProto, ReadsEachFieldAlone) {
  v1::Selector proto;
  proto.mutable_snapkv()->set_pooling(v1::POOLING_NONE);
  EXPECT_EQ(Read(proto), SelectorSpec(SnapKv{16, 5, Pooling::kNone}));
  proto.mutable_h2o()->set_normalised(false);
  EXPECT_EQ(Read(proto), SelectorSpec(H2o{17, 100, false}));
  proto.mutable_h2o()->set_queries(7);
  EXPECT_EQ(Read(proto), SelectorSpec(H2o{17, 7, false}));
  proto.mutable_recent_attention()->set_window(3);
  EXPECT_EQ(Read(proto), SelectorSpec(RecentAttention{3, 101, 9, Pooling::kMax}));
  proto.mutable_mixed()->set_weight(0);
  EXPECT_EQ(Read(proto), SelectorSpec(MixedAttention{kSnapKv, 102, 0}));
  proto.mutable_mixed()->mutable_snapkv()->set_kernel(3);
  EXPECT_EQ(Read(proto), SelectorSpec(MixedAttention{{16, 3, Pooling::kMean}, 102, 0}));
  proto.mutable_streaming_llm()->set_window(3);
  EXPECT_EQ(Read(proto), SelectorSpec(StreamingLlm{3}));
  proto.mutable_random()->set_seed(0);
  EXPECT_EQ(Read(proto), SelectorSpec(RandomPositions{20, 0}));
}

TEST(SelectorFromProto, NamesFieldAndValue) {
  const auto refused = [](const std::function<void(v1::Selector&)>& damage) {
    v1::Selector proto;
    damage(proto);
    return std::string(SelectorFromProto(proto, kDefaults, "kv.selector.").status().message());
  };
  using testing::StartsWith;
  EXPECT_THAT(refused([](auto& p) { p.mutable_snapkv()->set_kernel(4); }),
              StartsWith("kv.selector.snapkv.kernel is 4"));
  EXPECT_THAT(
      refused([](auto& p) { p.mutable_snapkv()->set_pooling(static_cast<v1::Pooling>(17)); }),
      StartsWith("kv.selector.snapkv.pooling is 17: must be POOLING_NONE"));
  EXPECT_THAT(refused([](auto& p) { p.mutable_h2o()->set_queries(0); }),
              StartsWith("kv.selector.h2o.queries is 0: must be between 1 and 512"));
  EXPECT_THAT(refused([](auto& p) { p.mutable_recent_attention()->set_queries(513); }),
              StartsWith("kv.selector.recent_attention.queries is 513"));
  EXPECT_THAT(refused([](auto& p) {
                p.mutable_recent_attention()->set_pooling(static_cast<v1::Pooling>(17));
              }),
              StartsWith("kv.selector.recent_attention.pooling is 17"));
  EXPECT_THAT(refused([](auto& p) { p.mutable_mixed()->set_weight(1.5); }),
              StartsWith("kv.selector.mixed.weight is 1.5: must be between 0 and 1"));
  EXPECT_THAT(refused([](auto& p) { p.mutable_mixed()->mutable_snapkv()->set_window(0); }),
              StartsWith("kv.selector.mixed.snapkv.window is 0"));
  EXPECT_THAT(refused([](auto& p) {
                p.mutable_mixed()->mutable_snapkv()->set_pooling(static_cast<v1::Pooling>(17));
              }),
              StartsWith("kv.selector.mixed.snapkv.pooling is 17"));
  EXPECT_THAT(refused([](auto& p) { p.mutable_streaming_llm()->set_window(1025); }),
              StartsWith("kv.selector.streaming_llm.window is 1025"));
  EXPECT_THAT(refused([](auto& p) { p.mutable_random()->set_window(-1); }),
              StartsWith("kv.selector.random.window is -1"));
}

TEST(SelectorToProto, ReadsBack) {
  for (const Pooling pooling : {Pooling::kMax, Pooling::kMean, Pooling::kNone}) {
    const SnapKv snapkv = {8, 3, pooling};
    for (const SelectorSpec& selector : std::vector<SelectorSpec>{
             snapkv, H2o{8, 9, true}, H2o{8, 9, false}, RecentAttention{8, 9, 11, pooling},
             MixedAttention{snapkv, 9, 0.125}, StreamingLlm{8}, RandomPositions{8, ~uint64_t{0}}}) {
      // Nothing is left to the defaults.
      const auto read = SelectorFromProto(SelectorToProto(selector), {}, "");
      ASSERT_TRUE(read.ok() && read->has_value()) << read.status();
      EXPECT_EQ(**read, selector);
    }
  }
}

}  // namespace
}  // namespace ripplekv
