#include "server/rpc/remote_calibration.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <thread>

#include "server/rpc/settings_convert.h"

namespace ripplekv {
namespace {

using testing::HasSubstr;

ProfileKey Key() {
  ProfileKey key;
  key.model_fingerprint = std::string(64, 'a');
  key.compute_type = "fp32";
  key.settings.examples = 2;
  key.corpus_digest = std::string(64, 'b');
  return key;
}

Profile Measured(const ProfileKey& key) {
  Profile profile;
  profile.key = key;
  profile.model_name = "m";
  profile.corpus_name = "default";
  profile.software_version = "1";
  profile.layers = 3;
  profile.examples_computed = 2;
  profile.sensitivity = {0.1, 0.7, 1.0 / 3};
  profile.standard_error = {0.01, 0.02, 0.03};
  profile.local_response = {0.2, 0.1, 0.4};
  profile.local_response_error = {0.001, 0.002, 0.003};
  return profile;
}

// Plays a calibration server that measures `profile`, or has it stored.
class FakeServer final : public v1::CalibrationService::Service {
 public:
  explicit FakeServer(Profile profile) : profile_(std::move(profile)) {}

  void Start(int port = 0) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port), grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }
  void Stop() { server_->Shutdown(std::chrono::system_clock::now()); }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  int port() const { return port_; }

  grpc::Status GetProfile(grpc::ServerContext*, const v1::GetProfileRequest* request,
                          v1::GetProfileResponse* response) override {
    if (!stored || request->profile_id() != profile_.id())
      return grpc::Status(grpc::StatusCode::NOT_FOUND, "none");
    *response->mutable_profile() = ProfileToProto(profile_, std::nullopt);
    return grpc::Status::OK;
  }

  grpc::Status CalibrateModel(grpc::ServerContext*, const v1::CalibrateModelRequest* request,
                              grpc::ServerWriter<v1::CalibrateModelResponse>* writer) override {
    ++calibrations;
    asked = *request;
    v1::CalibrateModelResponse event;
    event.mutable_started()->set_profile_id(profile_.id());
    writer->Write(event);
    event.mutable_progress()->set_examples_total(2);
    writer->Write(event);
    *event.mutable_complete()->mutable_profile() = ProfileToProto(profile_, std::nullopt);
    if (damage) damage(*event.mutable_complete()->mutable_profile());
    writer->Write(event);
    return grpc::Status::OK;
  }

  bool stored = false;
  std::function<void(v1::Profile&)> damage;
  std::atomic<int> calibrations{0};
  v1::CalibrateModelRequest asked;

 private:
  const Profile profile_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

class RemoteCalibrationTest : public testing::Test {
 protected:
  RemoteCalibrationTest() {
    directory_ = testing::TempDir() + "/remote_calibration_" + std::to_string(getpid());
    std::filesystem::remove_all(directory_);
    store_ = *ProfileStore::Open(directory_);
    PlanSpec spec;
    spec.layers = 3;
    spec.allocator = RippleAllocator{};
    plans_ = *PlanKeeper::Create(spec, Key(), &log_, &metrics_);
  }
  ~RemoteCalibrationTest() override { std::filesystem::remove_all(directory_); }

  void Start(const std::string& address) {
    remote_ = std::make_unique<RemoteCalibration>(
        RemoteCalibration::Options{address, Key().settings, "default"}, plans_.get(), store_.get(),
        Observers{&log_, &metrics_});
  }

  bool WaitFor(const std::function<bool()>& what) {
    for (int i = 0; i < 1000 && !what(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return what();
  }

  // Only after the thread that writes them has ended.
  std::string Lines() {
    remote_.reset();
    std::string all;
    for (const std::string& line : lines_) all += line + "\n";
    return all;
  }

  std::vector<std::string> lines_;
  Log log_{LogLevel::kInfo, LogFormat::kText, &lines_};
  Metrics metrics_{{}};
  std::string directory_;
  std::unique_ptr<ProfileStore> store_;
  std::unique_ptr<PlanKeeper> plans_;
  std::unique_ptr<RemoteCalibration> remote_;
};

TEST_F(RemoteCalibrationTest, HasTheProfileMeasuredAndKeepsTheSameBytes) {
  const Profile profile = Measured(Key());
  FakeServer server(profile);
  server.Start();
  Start(server.address());
  ASSERT_TRUE(WaitFor([&] { return plans_->has_profile(); }));
  EXPECT_TRUE(plans_->InForce(profile.id()));
  EXPECT_EQ(*SerializeProfile(*store_->Get(profile.id())), *SerializeProfile(profile));
  EXPECT_EQ(server.calibrations, 1);
  EXPECT_EQ(*SettingsFromProto(server.asked.settings(), {}), Key().settings);
  EXPECT_EQ(server.asked.corpus().name(), "default");
  EXPECT_THAT(Lines(), HasSubstr("profile_fetched"));
  EXPECT_THAT(metrics_.Scrape(), HasSubstr("ripplekv_calibrations_total{outcome=\"fetched\"} 1"));
  EXPECT_THAT(metrics_.Scrape(), HasSubstr("\nripplekv_profile_fetch_failures_total 0\n"));
}

TEST_F(RemoteCalibrationTest, TakesAStoredProfileWithoutMeasuring) {
  FakeServer server(Measured(Key()));
  server.stored = true;
  server.Start();
  Start(server.address());
  ASSERT_TRUE(WaitFor([&] { return plans_->has_profile(); }));
  EXPECT_EQ(server.calibrations, 0);
}

TEST_F(RemoteCalibrationTest, WaitsForAServerThatIsDown) {
  FakeServer server(Measured(Key()));
  server.Start();
  server.Stop();
  Start(server.address());
  ASSERT_TRUE(
      WaitFor([&] { return plans_->status().find(server.address()) != std::string::npos; }));
  EXPECT_FALSE(plans_->has_profile());
  FakeServer again(Measured(Key()));
  again.Start(server.port());
  EXPECT_TRUE(WaitFor([&] { return plans_->has_profile(); }));
  // Once a change of trouble, not once a try.
  const std::string lines = Lines();
  EXPECT_THAT(lines, HasSubstr("calibration_server_failed"));
  EXPECT_THAT(metrics_.Scrape(),
              testing::ContainsRegex("\nripplekv_profile_fetch_failures_total [1-9]"));
}

TEST_F(RemoteCalibrationTest, RefusesAProfileOfSomethingElse) {
  ProfileKey other = Key();
  other.compute_type = "bf16";
  FakeServer server(Measured(other));
  server.Start();
  Start(server.address());
  ASSERT_TRUE(
      WaitFor([&] { return plans_->status().find("same model file") != std::string::npos; }));
  EXPECT_FALSE(plans_->has_profile());
  EXPECT_TRUE(store_->List()->empty());
}

TEST_F(RemoteCalibrationTest, RefusesADamagedProfile) {
  FakeServer server(Measured(Key()));
  server.damage = [](v1::Profile& profile) { profile.mutable_layers(0)->set_mean_kl(0.25); };
  server.Start();
  Start(server.address());
  ASSERT_TRUE(
      WaitFor([&] { return plans_->status().find("content_digest") != std::string::npos; }));
  EXPECT_FALSE(plans_->has_profile());
  EXPECT_TRUE(store_->List()->empty());
}

TEST_F(RemoteCalibrationTest, EndsAtOnceWhenTheServerStops) {
  Start("127.0.0.1:1");
  const auto start = std::chrono::steady_clock::now();
  remote_.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

}  // namespace
}  // namespace ripplekv
