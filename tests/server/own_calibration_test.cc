#include "server/own_calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "tests/calibration/calibrator_fakes.h"

namespace ripplekv {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

class OwnCalibrationTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string directory = testing::TempDir() + "own-calibration-XXXXXX";
    ASSERT_NE(mkdtemp(directory.data()), nullptr);
    directory_ = directory;
    store_ = *ProfileStore::Open(directory_);
    runner_ = std::make_unique<Runner>();

    CalibratorOptions options;
    options.model_fingerprint = std::string(64, 'a');
    options.model_name = "fake";
    options.compute_type = "fp32";
    options.software_version = "1.2.3";
    options.layers = kLayers;
    options.context_length = 64;
    CalibratorParts parts;
    parts.store = store_;
    parts.find_corpus = [this](std::string_view) { return TestCorpus(); };
    parts.tokenize = [](std::string_view text) -> absl::StatusOr<std::vector<int32_t>> {
      return std::vector<int32_t>(text.begin(), text.end());
    };
    parts.make_probe =
        [this](const CalibrationSettings&,
               CalibrationExamples examples) -> absl::StatusOr<std::unique_ptr<SensitivityProbe>> {
      const absl::Status failure =
          ++probes_ <= failing_probes_ ? absl::InternalError("LibTorch failed") : absl::OkStatus();
      return std::make_unique<FakeProbe>(std::move(examples), &gate_, failure, &alive_);
    };
    parts.submit = [this](std::shared_ptr<BackgroundJob> job) {
      return runner_->Submit(std::move(job));
    };
    parts.on_profile = [this](const CalibrationResult& result) { plans_->Adopt(result.profile); };
    parts.on_failure = [this](const std::string& job_id, const absl::Status& status) {
      ReportCalibrationFailure(job_id, status, &log_, &metrics_);
    };
    calibrator_ = std::make_unique<Calibrator>(std::move(options), std::move(parts));

    PlanSpec spec;
    spec.layers = kLayers;
    spec.allocator = RippleAllocator{};
    plans_ = *PlanKeeper::Create(spec, calibrator_->KeyOf(Request().settings, *TestCorpus()), &log_,
                                 &metrics_);
  }

  void TearDown() override {
    own_.reset();
    gate_.Open();
    runner_->Stop();
    std::filesystem::remove_all(directory_);
  }

  absl::StatusOr<Corpus> TestCorpus() const {
    return CorpusFromTexts("default",
                           {"aaaaaaaaaaaa", corpus_changed_ ? "dddddddddddd" : "cccccccccccc"});
  }

  static CalibrationRequest Request(uint64_t seed = 0) {
    CalibrationRequest request;
    request.settings.examples = 2;
    request.settings.prefix_tokens = 8;
    request.settings.window_tokens = 4;
    request.settings.sinks = 1;
    request.settings.recent = 1;
    request.settings.seed = seed;
    request.detach = true;
    return request;
  }

  void Start(milliseconds first, milliseconds longest, CalibrationRequest request = Request()) {
    own_ = std::make_unique<OwnCalibration>(std::move(request), Backoff(first, longest),
                                            calibrator_.get(), plans_.get(), &log_, &metrics_);
  }

  static bool WaitFor(const std::function<bool()>& what) {
    for (int i = 0; i < 4000 && !what(); ++i) std::this_thread::sleep_for(milliseconds(5));
    return what();
  }
  bool StatusSays(const std::string& words) {
    return WaitFor([&] { return absl::StrContains(plans_->status(), words); });
  }

  // Ends everything that writes to the log.
  std::vector<std::string> Lines(const std::string& event) {
    own_.reset();
    gate_.Open();
    runner_->Stop();
    std::vector<std::string> found;
    for (const std::string& line : lines_) {
      if (absl::StrContains(line, event)) found.push_back(line);
    }
    return found;
  }

  std::vector<std::string> lines_;
  Log log_{LogLevel::kInfo, LogFormat::kText, &lines_};
  Metrics metrics_{{}};
  std::string directory_;
  std::shared_ptr<ProfileStore> store_;
  Gate gate_;
  std::atomic<int> alive_ = 0;
  std::atomic<int> probes_ = 0;
  std::atomic<int> failing_probes_ = 0;
  std::atomic<bool> corpus_changed_ = false;
  std::unique_ptr<PlanKeeper> plans_;
  std::unique_ptr<Runner> runner_;
  std::unique_ptr<Calibrator> calibrator_;
  std::unique_ptr<OwnCalibration> own_;
};

TEST_F(OwnCalibrationTest, TriesAgainUntilItHasTheProfile) {
  gate_.Open();
  failing_probes_ = 3;
  Start(milliseconds(2), milliseconds(5));
  ASSERT_TRUE(WaitFor([&] { return plans_->has_profile(); }));
  EXPECT_EQ(plans_->status(), "");
  EXPECT_EQ(probes_, 4);
  std::vector<JobState> states;
  for (const CalibrationRecord& record : calibrator_->List()) states.push_back(record.state);
  EXPECT_EQ(Lines("calibration_failed").size(), 3u);
  const std::vector<std::string> retries = Lines("calibration_retry");
  ASSERT_EQ(retries.size(), 3u);
  EXPECT_THAT(retries[0], AllOf(HasSubstr("pause_seconds=0.002"), HasSubstr("LibTorch failed")));
  EXPECT_THAT(retries[1], HasSubstr("pause_seconds=0.004"));
  EXPECT_THAT(retries[2], HasSubstr("pause_seconds=0.005"));
  EXPECT_THAT(metrics_.Scrape(), HasSubstr("ripplekv_calibrations_total{outcome=\"failed\"} 3"));
  EXPECT_EQ(std::count(states.begin(), states.end(), JobState::kFailed), 3);
}

TEST_F(OwnCalibrationTest, TellsItsCourse) {
  Start(hours(1), hours(1));
  EXPECT_EQ(plans_->status(), "calibrating: 0 of 2 examples");  // when the constructor is done
  gate_.Allow(kStepsAnExample);
  EXPECT_TRUE(StatusSays("calibrating: 1 of 2 examples"));
  gate_.Open();
  ASSERT_TRUE(WaitFor([&] { return plans_->has_profile(); }));
  EXPECT_EQ(Lines("calibration_started").size(), 1u);
}

TEST_F(OwnCalibrationTest, SaysWhatFailedAndWhenItIsTriedAgain) {
  gate_.Open();
  failing_probes_ = 1;
  Start(hours(1), hours(2));
  EXPECT_TRUE(StatusSays("calibration failed: LibTorch failed (it is tried again after 3600 s)"))
      << plans_->status();
  // What somebody else has measured meanwhile is the plan; this object ends within its pause.
  auto listener = std::make_shared<Recorder>();
  ASSERT_TRUE(calibrator_->Start(Request(), listener).ok());
  ASSERT_TRUE(listener->Await().ok());
  EXPECT_TRUE(plans_->has_profile());
  EXPECT_EQ(plans_->status(), "");
}

TEST_F(OwnCalibrationTest, StoreThatCannotBeWrittenLeavesThePlanAndIsTriedAgain) {
  Start(milliseconds(20), milliseconds(20));
  ASSERT_TRUE(gate_.AwaitVisitor());
  std::filesystem::remove_all(directory_);
  gate_.Open();
  EXPECT_TRUE(StatusSays("cannot be stored")) << plans_->status();
  EXPECT_FALSE(plans_->has_profile());
  std::filesystem::create_directory(directory_);
  EXPECT_TRUE(WaitFor([&] { return plans_->has_profile(); }));
}

TEST_F(OwnCalibrationTest, WaitsForAnotherMeasurement) {
  auto other = std::make_shared<Recorder>();
  ASSERT_TRUE(calibrator_->Start(Request(7), other).ok());
  ASSERT_TRUE(gate_.AwaitVisitor());
  Start(milliseconds(5), milliseconds(5));
  EXPECT_TRUE(StatusSays("one runs at a time"));
  gate_.Open();
  EXPECT_TRUE(WaitFor([&] { return plans_->has_profile(); }));
  EXPECT_TRUE(other->Await().ok());
  EXPECT_TRUE(Lines("calibration_failed").empty());
}

TEST_F(OwnCalibrationTest, CancelledOneIsNotTriedAgain) {
  Start(milliseconds(1), milliseconds(1));
  ASSERT_TRUE(gate_.AwaitVisitor());
  const std::string id = calibrator_->running()->job_id;
  ASSERT_TRUE(calibrator_->Cancel(id, "cancelled by the test").ok());
  gate_.Open();
  EXPECT_TRUE(StatusSays("cancelled by the test; measure it with CalibrateModel"))
      << plans_->status();
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(calibrator_->List().size(), 1u);
  EXPECT_FALSE(plans_->has_profile());
  EXPECT_TRUE(Lines("calibration_retry").empty());
}

TEST_F(OwnCalibrationTest, WhatCanNeverWorkIsNotTriedAgain) {
  CalibrationRequest request = Request();
  request.settings.examples = 3;  // of two texts
  Start(milliseconds(1), milliseconds(1), request);
  EXPECT_TRUE(StatusSays("calibration failed: examples is 3"));
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_TRUE(Lines("calibration_retry").empty());
  EXPECT_EQ(Lines("calibration_failed").size(), 1u);
}

TEST_F(OwnCalibrationTest, CorpusThatChangedIsSaid) {
  corpus_changed_ = true;
  gate_.Open();
  Start(milliseconds(1), milliseconds(1));
  EXPECT_TRUE(StatusSays("have changed")) << plans_->status();
  EXPECT_FALSE(plans_->has_profile());
}

TEST_F(OwnCalibrationTest, EndsAtOnceAndLeavesTheMeasurement) {
  Start(hours(1), hours(1));
  ASSERT_TRUE(gate_.AwaitVisitor());
  own_.reset();  // while it measures
  EXPECT_TRUE(calibrator_->running().has_value());
  gate_.Open();
  EXPECT_TRUE(WaitFor([&] { return plans_->has_profile(); }));
  failing_probes_ = 2;
  const auto begin = std::chrono::steady_clock::now();
  CalibrationRequest again = Request();
  again.force = true;
  Start(hours(1), hours(1), again);
  ASSERT_TRUE(WaitFor([&] { return calibrator_->List()[0].state == JobState::kFailed; }));
  own_.reset();  // in its pause
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(5));
}

}  // namespace
}  // namespace ripplekv
