#include "client/names.h"

#include <gtest/gtest.h>

namespace ripplekv {
namespace {

TEST(NamesTest, EveryKnownValueHasAName) {
  for (int i = 1; i < v1::ComputeType_ARRAYSIZE; ++i)
    EXPECT_EQ(NameOf(v1::ComputeType(i)).find(' '), std::string::npos);
  for (int i = 1; i < v1::KvType_ARRAYSIZE; ++i)
    EXPECT_EQ(NameOf(v1::KvType(i)).find(' '), std::string::npos);
  for (int i = 1; i < v1::Pooling_ARRAYSIZE; ++i)
    EXPECT_EQ(NameOf(v1::Pooling(i)).find(' '), std::string::npos);
  for (int i = 1; i < v1::FinishReason_ARRAYSIZE; ++i) {
    EXPECT_EQ(NameOf(v1::FinishReason(i)).find("finish reason"), std::string::npos);
  }
  for (int i = 1; i < v1::PlanSource_ARRAYSIZE; ++i) {
    v1::Plan plan;
    plan.set_source(v1::PlanSource(i));
    EXPECT_EQ(DescribeSource(plan).find("plan source"), std::string::npos);
  }
  EXPECT_EQ(NameOf(v1::FinishReason(99)), "finish reason 99");
}

TEST(NamesTest, PlansInWords) {
  v1::Allocator allocator;
  EXPECT_EQ(Describe(allocator), "");
  allocator.mutable_ripple()->set_r(1.5);
  allocator.mutable_ripple()->set_gamma(16);
  EXPECT_EQ(Describe(allocator), "ripple (r 1.5, gamma 16)");
  allocator.mutable_uniform();
  EXPECT_EQ(Describe(allocator), "uniform");
  allocator.mutable_ripple()->set_r(4);
  allocator.mutable_ripple()->set_gamma(16);
  allocator.mutable_ripple()->set_map(v1::SIGNAL_MAP_RANK);
  EXPECT_EQ(Describe(allocator), "ripple (r 4, gamma 16, rank)");
  allocator.mutable_isolated_damage()->set_retention(0.1);
  allocator.mutable_isolated_damage()->mutable_ripple()->set_r(2);
  EXPECT_EQ(Describe(allocator), "isolated damage at 0.1 (r 2, gamma 0)");
  allocator.mutable_pyramid()->set_beta(20);
  EXPECT_EQ(Describe(allocator), "pyramid (beta 20)");
  const google::protobuf::Descriptor* fields = v1::Allocator::descriptor();
  for (int i = 0; i < fields->field_count(); ++i) {
    v1::Allocator any;
    any.GetReflection()->MutableMessage(&any, fields->field(i));
    EXPECT_NE(Describe(any), "") << fields->field(i)->name();
  }
  v1::CacheSize size;
  size.set_total_bytes(2048);
  EXPECT_EQ(Describe(size), "2.0 KiB over all layers");
  size.set_target_mean_kl(0.05);
  EXPECT_EQ(Describe(size), "mean KL 0.05 at most");
  size.set_retention(0.2);
  EXPECT_EQ(Describe(size), "retention 0.2");
  size.set_total_positions(24576);
  EXPECT_EQ(Describe(size), "24,576 positions over all layers");
  size.mutable_full();
  EXPECT_EQ(Describe(size), "every position");
  v1::Selector selector;
  EXPECT_EQ(Describe(selector), "");
  selector.mutable_snapkv()->set_window(32);
  selector.mutable_snapkv()->set_kernel(7);
  selector.mutable_snapkv()->set_pooling(v1::POOLING_MAX);
  EXPECT_EQ(Describe(selector), "SnapKV (window 32, kernel 7, pooling max)");
  selector.mutable_mixed()->set_queries(2048);
  selector.mutable_mixed()->set_weight(0.25);
  selector.mutable_mixed()->mutable_snapkv()->set_window(32);
  selector.mutable_mixed()->mutable_snapkv()->set_kernel(7);
  selector.mutable_mixed()->mutable_snapkv()->set_pooling(v1::POOLING_MEAN);
  EXPECT_EQ(Describe(selector),
            "0.25 SnapKV (window 32, kernel 7, pooling mean) + 0.75 recent attention (2,048 "
            "queries)");
  selector.mutable_h2o()->set_window(16);
  selector.mutable_h2o()->set_queries(256);
  EXPECT_EQ(Describe(selector), "H2O (window 16, 256 queries)");
  selector.mutable_h2o()->set_normalised(true);
  EXPECT_EQ(Describe(selector), "H2O (window 16, 256 queries, normalised)");
  selector.mutable_recent_attention()->set_window(16);
  selector.mutable_recent_attention()->set_queries(256);
  selector.mutable_recent_attention()->set_kernel(7);
  selector.mutable_recent_attention()->set_pooling(v1::POOLING_NONE);
  EXPECT_EQ(Describe(selector),
            "recent attention (window 16, 256 queries, kernel 7, pooling none)");
  selector.mutable_streaming_llm()->set_window(4);
  EXPECT_EQ(Describe(selector), "StreamingLLM (window 4)");
  selector.mutable_random()->set_window(4);
  selector.mutable_random()->set_seed(9);
  EXPECT_EQ(Describe(selector), "random (window 4, seed 9)");
  v1::Plan plan;
  plan.set_source(v1::PLAN_SOURCE_PROFILE);
  plan.set_profile_id(std::string(64, 'a'));
  EXPECT_EQ(DescribeSource(plan), "from profile aaaaaaaaaaaa");
}

}  // namespace
}  // namespace ripplekv
