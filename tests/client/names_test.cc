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
  v1::CacheSize size;
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
  v1::Plan plan;
  plan.set_source(v1::PLAN_SOURCE_PROFILE);
  plan.set_profile_id(std::string(64, 'a'));
  EXPECT_EQ(DescribeSource(plan), "from profile aaaaaaaaaaaa");
}

}  // namespace
}  // namespace ripplekv
