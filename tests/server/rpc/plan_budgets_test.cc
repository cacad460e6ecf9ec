#include "server/rpc/plan_budgets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "server/rpc/profile_queries.h"
#include "tests/server/rpc/test_model.h"

namespace ripplekv {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ProfileKey Key(uint64_t seed) {
  ProfileKey key;
  key.model_fingerprint = std::string(64, 'a');
  key.compute_type = "fp32";
  key.corpus_digest = std::string(64, 'b');
  key.settings.seed = seed;
  return key;
}

Profile Measured(uint64_t seed) {
  Profile profile;
  profile.key = Key(seed);
  profile.model_name = "m";
  profile.corpus_name = "default";
  profile.software_version = "1";
  profile.layers = 4;
  profile.examples_computed = 1;
  profile.sensitivity = {0, 0, 1, 1};
  profile.local_response = {0.1, 0.1, 0.2, 0.2};
  return profile;
}

class CalibrationQueriesTest : public testing::Test {
 protected:
  CalibrationQueriesTest() {
    directory_ = testing::TempDir() + "/queries_" + std::to_string(getpid());
    std::filesystem::remove_all(directory_);
    store_ = *ProfileStore::Open(directory_);
    PlanSpec spec;
    spec.layers = 4;
    spec.allocator = RippleAllocator{.r = 3};
    spec.size = Retention{0.1};
    spec.min_positions = 0;
    spec.kv_shape = {.kv_heads = 2, .head_dim = 8};
    plans_ = *PlanKeeper::Create(spec, Key(0), &log_, &metrics_);
    backend_.model = std::make_shared<ModelInfo>(TinyModel());
    backend_.store = store_.get();
    backend_.plans = plans_.get();
    backend_.defaults.allocators.ripple = {.r = 3, .gamma = 16};
  }
  ~CalibrationQueriesTest() override { std::filesystem::remove_all(directory_); }

  std::vector<int> Budgets() {
    response_.Clear();
    status_ = PlanBudgets(backend_, request_, &response_);
    std::vector<int> positions;
    for (const auto& layer : response_.layers()) positions.push_back(layer.positions());
    return positions;
  }

  Log log_{LogLevel::kError, LogFormat::kText};
  Metrics metrics_{{}};
  std::string directory_;
  std::unique_ptr<ProfileStore> store_;
  std::unique_ptr<PlanKeeper> plans_;
  CalibrationBackend backend_;
  v1::PlanBudgetsRequest request_;
  v1::PlanBudgetsResponse response_;
  absl::Status status_;
};

TEST_F(CalibrationQueriesTest, PlansUniformlyUntilThereIsAProfile) {
  request_.set_prompt_tokens(1000);
  EXPECT_THAT(Budgets(), ElementsAre(100, 100, 100, 100));
  EXPECT_EQ(response_.plan().source(), v1::PLAN_SOURCE_UNIFORM);
  EXPECT_EQ(response_.total_positions(), 400);
  // 2 KV heads of 8, keys and values, two bytes each, and a position of four bytes per head.
  EXPECT_EQ(response_.kv_bytes(), 400 * 72);
  EXPECT_EQ(response_.full_kv_bytes(), 4000 * 72);
  plans_->Adopt(Measured(0));
  // Multipliers 1, 1, 3, 3 over their mean, 2.
  EXPECT_THAT(Budgets(), ElementsAre(50, 50, 150, 150));
  EXPECT_EQ(response_.plan().source(), v1::PLAN_SOURCE_PROFILE);
}

TEST_F(CalibrationQueriesTest, PlansFromInlineSensitivitiesOfAnyDepth) {
  request_.set_prompt_tokens(1000);
  request_.mutable_inline_()->add_mean_kl(0);
  request_.mutable_inline_()->add_mean_kl(1);
  EXPECT_THAT(Budgets(), ElementsAre(50, 150));
  EXPECT_EQ(response_.plan().source(), v1::PLAN_SOURCE_INLINE);
  EXPECT_EQ(response_.kv_bytes(), 0);
  request_.mutable_allocator()->mutable_uniform();
  EXPECT_THAT(Budgets(), ElementsAre(100, 100));
}

TEST_F(CalibrationQueriesTest, SharesThatDependOnTheSizeAreToldOverTheirMean) {
  request_.set_prompt_tokens(1000);
  request_.mutable_size()->set_total_positions(400);
  // base 68, low 3.4, high 132.6, window 32; the floor of 37 takes from the others.
  request_.mutable_allocator()->mutable_pyramid();
  backend_.defaults.allocators.pyramid.beta = 20;
  EXPECT_THAT(Budgets(), ElementsAre(164, 121, 78, 37));
  EXPECT_EQ(response_.plan().source(), v1::PLAN_SOURCE_FIXED);
  EXPECT_EQ(response_.layers(0).multiplier(), 1.64);
  EXPECT_EQ(response_.layers(0).kv_bytes(), 164 * 72);
  EXPECT_EQ(response_.layers(0).key_type(), v1::KV_TYPE_BF16);
  EXPECT_EQ(response_.byte_budget(), 0);
  request_.mutable_size()->set_total_bytes(400 * 72 + 71);
  EXPECT_THAT(Budgets(), ElementsAre(164, 121, 78, 37));
  // Given positions are the size.
  for (const int positions : {300, 40, 50, 60}) {
    request_.mutable_allocator()->mutable_positions()->add_positions(positions);
  }
  Budgets();
  EXPECT_EQ(status_.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status_.message()),
              HasSubstr("size is given beside the positions allocator"));
  request_.clear_size();
  EXPECT_THAT(Budgets(), ElementsAre(300, 40, 50, 60));
}

TEST_F(CalibrationQueriesTest, SaysWhatWasRaisedOrClamped) {
  request_.set_prompt_tokens(1000);
  request_.set_min_positions(250);
  EXPECT_THAT(Budgets(), ElementsAre(250, 250, 250, 250));
  EXPECT_TRUE(response_.raised());
  EXPECT_EQ(response_.requested_positions(), 400);
  request_.clear_min_positions();
  request_.mutable_size()->set_total_positions(1);
  EXPECT_THAT(Budgets(), ElementsAre(37, 37, 37, 37));
  EXPECT_TRUE(response_.clamped());
  request_.mutable_size()->mutable_full();
  EXPECT_THAT(Budgets(), ElementsAre(1000, 1000, 1000, 1000));
  EXPECT_TRUE(response_.full());
}

TEST_F(CalibrationQueriesTest, RefusesBadPlans) {
  const auto expect = [&](const std::string& part,
                          absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    Budgets();
    EXPECT_EQ(status_.code(), code) << part;
    EXPECT_THAT(std::string(status_.message()), HasSubstr(part));
  };
  expect("prompt_tokens is 0: must be 1 to");
  request_.set_prompt_tokens(10);
  request_.mutable_inline_();
  expect("inline.mean_kl has 0 values: must have 1 to");
  request_.mutable_inline_()->add_mean_kl(std::numeric_limits<double>::infinity());
  expect("inline.mean_kl[0] is inf");
  request_.set_profile_id("x");
  expect("profile_id is 'x': must be 64 lower-case hexadecimal digits");
  request_.set_profile_id(std::string(64, '0'));
  expect("no profile 0000", absl::StatusCode::kNotFound);
  request_.clear_sensitivities();
  request_.set_min_positions(-1);
  expect("min_positions is -1");
  request_.clear_min_positions();
  request_.mutable_allocator()->mutable_ripple();
  expect("needs a sensitivity profile", absl::StatusCode::kFailedPrecondition);
  request_.mutable_allocator()->mutable_damage_curves();
  expect("calibrate the model with --calibration-damage", absl::StatusCode::kFailedPrecondition);
  request_.mutable_allocator()->mutable_multipliers()->add_multipliers(2);
  expect("allocator.multipliers.multipliers has 1 values: must have one for each of the 4 layers");
  request_.mutable_allocator()->mutable_multipliers()->add_multipliers(0);
  expect("allocator.multipliers.multipliers[1] is 0");
  request_.mutable_allocator()->mutable_uniform();
  request_.mutable_size()->set_target_mean_kl(0.1);
  expect("target_mean_kl needs", absl::StatusCode::kFailedPrecondition);
  // Bytes of another model's rows are not known.
  request_.mutable_size()->set_total_bytes(1000);
  request_.mutable_inline_()->add_mean_kl(1);
  expect("give retention or total_positions", absl::StatusCode::kFailedPrecondition);
}

TEST_F(CalibrationQueriesTest, ListsPageByPage) {
  std::vector<std::string> ids;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    ASSERT_TRUE(store_->Put(Measured(seed)).ok());
    ids.push_back(Measured(seed).id());
  }
  std::sort(ids.begin(), ids.end());
  std::vector<std::string> listed;
  v1::ListProfilesRequest request;
  request.set_page_size(2);
  int pages = 0;
  do {
    v1::ListProfilesResponse response;
    ASSERT_TRUE(ListProfiles(backend_, request, &response).ok());
    for (const auto& profile : response.profiles()) listed.push_back(profile.profile_id());
    request.set_page_token(response.next_page_token());
    ++pages;
  } while (!request.page_token().empty());
  EXPECT_EQ(listed, ids);
  EXPECT_EQ(pages, 3);
  request.set_page_size(0);
  v1::ListProfilesResponse all;
  ASSERT_TRUE(ListProfiles(backend_, request, &all).ok());
  EXPECT_EQ(all.profiles_size(), 5);
  request.set_page_size(1001);
  EXPECT_THAT(std::string(ListProfiles(backend_, request, &all).message()),
              HasSubstr("page_size is 1001"));
  request.set_page_size(-1);
  EXPECT_FALSE(ListProfiles(backend_, request, &all).ok());
  request.set_page_size(1);
  request.set_page_token("../x");
  EXPECT_THAT(std::string(ListProfiles(backend_, request, &all).message()),
              HasSubstr("page_token is '../x'"));
}

TEST_F(CalibrationQueriesTest, GetsAndDeletes) {
  const Profile own = Measured(0);
  v1::GetProfileRequest get;
  v1::GetProfileResponse got;
  EXPECT_EQ(GetProfile(backend_, get, &got).code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(store_->Put(own).ok());
  plans_->Adopt(own);
  ASSERT_TRUE(GetProfile(backend_, get, &got).ok());
  EXPECT_EQ(got.profile().profile_id(), own.id());
  EXPECT_TRUE(got.in_force());
  v1::DeleteProfileRequest remove;
  remove.set_profile_id(own.id());
  EXPECT_TRUE(DeleteProfile(backend_, remove).ok());
  EXPECT_EQ(DeleteProfile(backend_, remove).code(), absl::StatusCode::kNotFound);
  // The plan that was made from it stays.
  EXPECT_TRUE(plans_->InForce(own.id()));
}

}  // namespace
}  // namespace ripplekv
