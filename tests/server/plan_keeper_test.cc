#include "server/plan_keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ripplekv {
namespace {

using testing::HasSubstr;

ProfileKey Key() {
  ProfileKey key;
  key.model_fingerprint = std::string(64, 'a');
  key.compute_type = "fp32";
  key.corpus_digest = std::string(64, 'b');
  return key;
}

Profile Measured(const ProfileKey& key) {
  Profile profile;
  profile.key = key;
  profile.layers = 3;
  profile.examples_computed = 1;
  profile.sensitivity = {0.0, 0.5, 1.0};
  return profile;
}

class PlanKeeperTest : public testing::Test {
 protected:
  std::unique_ptr<PlanKeeper> Make() {
    PlanSpec spec;
    spec.layers = 3;
    spec.allocator = RippleAllocator{.r = 4, .gamma = 16};
    return *PlanKeeper::Create(spec, Key(), &log_, &metrics_);
  }

  std::vector<std::string> lines_;
  Log log_{LogLevel::kInfo, LogFormat::kText, &lines_};
  Metrics metrics_{{}};
};

TEST_F(PlanKeeperTest, IsUniformUntilTheProfileIsThere) {
  const auto plans = Make();
  EXPECT_FALSE(plans->has_profile());
  EXPECT_EQ(plans->plan()->multipliers(), (std::vector<double>{1, 1, 1}));
  EXPECT_FALSE(plans->status().empty());
  EXPECT_THAT(lines_.at(0), HasSubstr("plan_in_force source=uniform"));
  EXPECT_THAT(metrics_.Scrape(), HasSubstr("ripplekv_plan_info{source=\"uniform\"} 1"));

  const Profile profile = Measured(Key());
  EXPECT_TRUE(plans->Adopt(profile));
  EXPECT_TRUE(plans->InForce(profile.id()));
  EXPECT_TRUE(plans->status().empty());
  // r^0, r^0.5, r^1 over their mean, 7 / 3.
  EXPECT_NEAR(plans->plan()->multipliers()[0], 3.0 / 7, 1e-12);
  EXPECT_NEAR(plans->plan()->multipliers()[1], 6.0 / 7, 1e-12);
  EXPECT_NEAR(plans->plan()->multipliers()[2], 12.0 / 7, 1e-12);
  EXPECT_THAT(lines_.back(), HasSubstr("plan_in_force source=profile profile_id=" + profile.id()));
  EXPECT_THAT(metrics_.Scrape(), HasSubstr("ripplekv_plan_info{source=\"uniform\"} 0"));
  EXPECT_THAT(metrics_.Scrape(), HasSubstr("ripplekv_plan_info{source=\"profile\"} 1"));
}

TEST_F(PlanKeeperTest, TakesOnlyTheConfiguredMeasurement) {
  const auto plans = Make();
  for (int what = 0; what < 4; ++what) {
    ProfileKey other = Key();
    if (what == 0) other.model_fingerprint = std::string(64, 'c');
    if (what == 1) other.compute_type = "bf16";
    if (what == 2) other.settings.seed = 1;
    if (what == 3) other.corpus_digest = std::string(64, 'd');
    EXPECT_FALSE(plans->Adopt(Measured(other))) << what;
  }
  EXPECT_FALSE(plans->has_profile());
}

TEST_F(PlanKeeperTest, TheCurveBySizeMeetsATarget) {
  ProfileKey key = Key();
  PlanSpec spec;
  spec.layers = 3;
  spec.min_positions = 0;
  key.settings.sizes = {
      .examples = 1, .prompt_tokens = {1000}, .retentions = {0.1, 0.5}, .kv_types = spec.kv_types};
  const auto plans = *PlanKeeper::Create(spec, key, &log_, &metrics_);
  const TargetMeanKl target{0.3};
  EXPECT_EQ(plans->plan()->BudgetsFor(1000, target).status().code(),
            absl::StatusCode::kFailedPrecondition);
  Profile profile = Measured(key);
  profile.sizes.mean_kl = {{0.3, 0.01}};
  EXPECT_TRUE(plans->Adopt(profile));
  EXPECT_EQ(plans->plan()->BudgetsFor(1000, target)->layer, (std::vector<int64_t>{100, 100, 100}));
}

TEST_F(PlanKeeperTest, TellsItsListenerAtOnceAndOfChanges) {
  const auto plans = Make();
  std::vector<std::string> heard;
  plans->SetListener(
      [&](std::shared_ptr<const Plan> plan) { heard.push_back(plan->profile_id()); });
  const Profile profile = Measured(Key());
  plans->Adopt(profile);
  EXPECT_THAT(heard, testing::ElementsAre("", profile.id()));
}

TEST_F(PlanKeeperTest, AnAllocatorThatNeedsNoProfileIsInForceAtOnce) {
  PlanSpec spec;
  spec.layers = 3;
  spec.allocator = PyramidAllocator{};
  const auto plans = *PlanKeeper::Create(spec, Key(), &log_, &metrics_);
  EXPECT_EQ(plans->plan()->allocator(), Allocator(PyramidAllocator{}));
  EXPECT_THAT(lines_.at(0), HasSubstr("plan_in_force source=fixed"));
  EXPECT_THAT(metrics_.Scrape(), HasSubstr("ripplekv_plan_info{source=\"fixed\"} 1"));
  EXPECT_TRUE(plans->Adopt(Measured(Key())));
  EXPECT_EQ(plans->plan()->allocator(), Allocator(PyramidAllocator{}));
}

TEST_F(PlanKeeperTest, StaysUniformWhereTheProfileLacksWhatTheAllocatorNeeds) {
  PlanSpec spec;
  spec.layers = 3;
  spec.allocator = DamageCurvesAllocator{};
  const auto plans = *PlanKeeper::Create(spec, Key(), &log_, &metrics_);
  EXPECT_FALSE(plans->Adopt(Measured(Key())));
  EXPECT_EQ(plans->plan()->allocator(), Allocator(UniformAllocator{}));
  EXPECT_THAT(lines_.back(), HasSubstr("calibrate the model with --calibration-damage"));
}

TEST_F(PlanKeeperTest, RefusesAPlanThatNoProfileCouldMake) {
  PlanSpec spec;
  spec.layers = 3;
  spec.allocator = RippleAllocator{.r = 0.5, .gamma = 16};
  const auto plans = PlanKeeper::Create(spec, Key(), &log_, &metrics_);
  ASSERT_FALSE(plans.ok());
  EXPECT_THAT(std::string(plans.status().message()), HasSubstr("0.5"));
}

}  // namespace
}  // namespace ripplekv
