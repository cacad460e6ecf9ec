#include "calibration/calibrator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/calibration/calibrator_fakes.h"

namespace ripplekv {
namespace {

using testing::HasSubstr;

class CalibratorTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string directory = testing::TempDir() + "calibrator-XXXXXX";
    ASSERT_NE(mkdtemp(directory.data()), nullptr);
    directory_ = directory;
    auto store = ProfileStore::Open(directory_);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    runner_ = std::make_unique<Runner>();

    CalibratorOptions options;
    options.model_fingerprint = std::string(64, 'a');
    options.model_name = "fake";
    options.compute_type = "fp32";
    options.layers = kLayers;
    options.context_length = 64;
    options.threads = 2;
    options.software_version = "1.2.3";
    CalibratorParts parts;
    parts.store = store_;
    parts.find_corpus = [](std::string_view name) { return FindTestCorpus(name); };
    parts.tokenize = [](std::string_view text) -> absl::StatusOr<std::vector<int32_t>> {
      return std::vector<int32_t>(text.begin(), text.end());
    };
    parts.make_probe = [this](const CalibrationSettings&,
                              std::vector<std::vector<int32_t>> examples)
        -> absl::StatusOr<std::unique_ptr<SensitivityProbe>> {
      ++probes_;
      return std::make_unique<FakeProbe>(std::move(examples), &gate_, failure_, &alive_);
    };
    parts.submit = [this](std::shared_ptr<BackgroundJob> job) {
      return runner_->Submit(std::move(job));
    };
    parts.on_profile = [this](const CalibrationResult&) { ++announced_; };
    calibrator_ = std::make_unique<Calibrator>(std::move(options), std::move(parts));
  }

  void TearDown() override {
    gate_.Open();
    runner_->Stop();
    calibrator_.reset();
    std::filesystem::remove_all(directory_);
  }

  static absl::StatusOr<Corpus> FindTestCorpus(std::string_view name) {
    if (!name.empty()) return absl::NotFoundError("no such corpus");
    return CorpusFromTexts("default", {"aaaaaaaaaaaa", "cccccccccccc"});
  }

  static CalibrationRequest Request(uint64_t seed = 0) {
    CalibrationRequest request;
    request.settings.examples = 2;
    request.settings.prefix_tokens = 8;
    request.settings.window_tokens = 4;
    request.settings.sinks = 1;
    request.settings.recent = 1;
    request.settings.seed = seed;
    return request;
  }

  std::string Start(const CalibrationRequest& request, const std::shared_ptr<Recorder>& listener) {
    auto id = calibrator_->Start(request, listener);
    EXPECT_TRUE(id.ok()) << id.status();
    return id.value_or("");
  }

  std::string directory_;
  std::shared_ptr<ProfileStore> store_;
  Gate gate_;
  absl::Status failure_;
  std::atomic<int> alive_ = 0;
  std::atomic<int> probes_ = 0;
  std::atomic<int> announced_ = 0;
  std::unique_ptr<Runner> runner_;
  std::unique_ptr<Calibrator> calibrator_;
};

TEST_F(CalibratorTest, MeasuresStoresAndTells) {
  auto listener = std::make_shared<Recorder>();
  const std::string id = Start(Request(), listener);
  gate_.Open();
  EXPECT_FALSE(id.empty());
  const auto result = listener->Await();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_FALSE(result->from_store);
  const Profile& profile = result->profile;
  // 'a' = 97 and 'c' = 99: mean 98, standard error sqrt(2) / sqrt(2) = 1.
  EXPECT_EQ(profile.sensitivity, (std::vector<double>{98, 98.125, 98.25}));
  EXPECT_EQ(profile.standard_error, (std::vector<double>{1, 1, 1}));
  EXPECT_EQ(profile.examples_computed, 2);
  EXPECT_EQ(profile.layers, kLayers);
  EXPECT_EQ(profile.model_name, "fake");
  EXPECT_EQ(profile.corpus_name, "default");
  EXPECT_EQ(profile.software_version, "1.2.3");
  EXPECT_EQ(profile.key.model_fingerprint, std::string(64, 'a'));
  EXPECT_EQ(profile.key.settings, Request().settings);
  ASSERT_TRUE(result->run.has_value());
  EXPECT_EQ(result->run->threads, 2);
  EXPECT_EQ(result->run->started_at.size(), std::string("2026-01-01T00:00:00Z").size());

  EXPECT_EQ(listener->started().job_id, id);
  EXPECT_EQ(listener->started().profile_id, profile.id());
  EXPECT_FALSE(listener->started().joined);
  ASSERT_FALSE(listener->progress().empty());
  EXPECT_EQ(listener->progress().front().job_id, id);
  EXPECT_EQ(listener->progress().front().probe.examples_total, 2);
  EXPECT_TRUE(listener->ordered());
  EXPECT_EQ(announced_, 1);

  const auto stored = store_->Get(profile.id());
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_EQ(*stored, profile);
  EXPECT_TRUE(store_->GetRunInfo(profile.id()).ok());
  EXPECT_FALSE(calibrator_->running().has_value());
}

TEST_F(CalibratorTest, FinishedProfileComesFromTheStoreUnlessForced) {
  gate_.Open();
  auto first = std::make_shared<Recorder>();
  Start(Request(), first);
  const auto measured = first->Await();
  ASSERT_TRUE(measured.ok());

  auto second = std::make_shared<Recorder>();
  EXPECT_EQ(Start(Request(), second), "");
  ASSERT_TRUE(second->done());
  EXPECT_TRUE(second->Await()->from_store);
  EXPECT_EQ(second->Await()->profile, measured->profile);
  EXPECT_EQ(second->Await()->run, measured->run);
  EXPECT_EQ(second->started().job_id, "");
  EXPECT_TRUE(second->ordered());
  EXPECT_EQ(probes_, 1);
  EXPECT_EQ(announced_, 1);

  // Other settings and other texts are another profile.
  auto third = std::make_shared<Recorder>();
  EXPECT_NE(Start(Request(1), third), "");
  EXPECT_FALSE(third->Await()->from_store);
  auto fourth = std::make_shared<Recorder>();
  CalibrationRequest inline_texts = Request();
  inline_texts.corpus = std::vector<std::string>{"eeeeeeeeeeee", "gggggggggggg"};
  EXPECT_NE(Start(inline_texts, fourth), "");
  ASSERT_TRUE(fourth->Await().ok());
  EXPECT_EQ(fourth->Await()->profile.sensitivity[0], 102);
  EXPECT_EQ(fourth->Await()->profile.corpus_name, "inline");

  auto forced = std::make_shared<Recorder>();
  CalibrationRequest again = Request();
  again.force = true;
  EXPECT_NE(Start(again, forced), "");
  EXPECT_FALSE(forced->Await()->from_store);
  EXPECT_EQ(probes_, 4);
}

TEST_F(CalibratorTest, IdenticalRequestJoins) {
  auto first = std::make_shared<Recorder>();
  auto second = std::make_shared<Recorder>();
  const std::string id = Start(Request(), first);
  ASSERT_TRUE(gate_.AwaitVisitor());
  ASSERT_TRUE(calibrator_->running().has_value());
  EXPECT_EQ(calibrator_->running()->job_id, id);
  EXPECT_EQ(Start(Request(), second), id);
  EXPECT_TRUE(second->started().joined);
  gate_.Open();
  ASSERT_TRUE(first->Await().ok());
  ASSERT_TRUE(second->Await().ok());
  EXPECT_EQ(first->Await()->profile, second->Await()->profile);
  EXPECT_EQ(probes_, 1);
  EXPECT_TRUE(first->ordered() && second->ordered());
}

TEST_F(CalibratorTest, OtherRequestIsRefusedWhileOneRuns) {
  auto first = std::make_shared<Recorder>();
  const std::string id = Start(Request(), first);
  ASSERT_TRUE(gate_.AwaitVisitor());
  auto other = std::make_shared<Recorder>();
  const auto refused = calibrator_->Start(Request(7), other);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr(id));
  EXPECT_FALSE(other->heard());
  gate_.Open();
  EXPECT_TRUE(first->Await().ok());
  Start(Request(7), other);
  EXPECT_TRUE(other->Await().ok());
}

TEST_F(CalibratorTest, LastListenerLeavingCancels) {
  auto first = std::make_shared<Recorder>();
  auto second = std::make_shared<Recorder>();
  const std::string id = Start(Request(), first);
  Start(Request(), second);
  ASSERT_TRUE(gate_.AwaitVisitor());
  gate_.Allow(1);
  ASSERT_TRUE(first->AwaitProgress());
  calibrator_->Leave(id, first.get());
  EXPECT_TRUE(calibrator_->running().has_value());
  calibrator_->Leave(id, second.get());
  EXPECT_FALSE(calibrator_->running().has_value());
  gate_.Allow(1);  // the slice that was under way
  for (int i = 0; i < 2000 && alive_ > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(alive_, 0);
  EXPECT_FALSE(first->done());
  EXPECT_FALSE(second->done());
  EXPECT_TRUE(store_->List()->empty());
  EXPECT_EQ(announced_, 0);

  gate_.Open();
  auto third = std::make_shared<Recorder>();
  EXPECT_NE(Start(Request(), third), id);
  EXPECT_TRUE(third->Await().ok());
  EXPECT_EQ(probes_, 2);
}

TEST_F(CalibratorTest, RestHearsWhenOneLeaves) {
  auto first = std::make_shared<Recorder>();
  auto second = std::make_shared<Recorder>();
  const std::string id = Start(Request(), first);
  Start(Request(), second);
  calibrator_->Leave(id, first.get());
  calibrator_->Leave("calibration-999", second.get());
  gate_.Open();
  EXPECT_TRUE(second->Await().ok());
  EXPECT_FALSE(first->done());
}

TEST_F(CalibratorTest, DetachedGoesOnAlone) {
  auto listener = std::make_shared<Recorder>();
  CalibrationRequest request = Request();
  request.detach = true;
  const std::string id = Start(request, listener);
  ASSERT_TRUE(gate_.AwaitVisitor());
  calibrator_->Leave(id, listener.get());
  EXPECT_TRUE(calibrator_->running().has_value());
  gate_.Open();
  auto second = std::make_shared<Recorder>();
  Start(Request(), second);  // joins, or finds it in the store
  EXPECT_TRUE(second->Await().ok());
  EXPECT_EQ(probes_, 1);
  EXPECT_FALSE(listener->done());
}

TEST_F(CalibratorTest, FailureReachesAllAndAnotherMayStart) {
  failure_ = absl::InternalError("LibTorch failed");
  auto first = std::make_shared<Recorder>();
  auto second = std::make_shared<Recorder>();
  Start(Request(), first);
  ASSERT_TRUE(gate_.AwaitVisitor());
  Start(Request(), second);
  gate_.Open();
  EXPECT_EQ(first->Await().status(), failure_);
  EXPECT_EQ(second->Await().status(), failure_);
  EXPECT_FALSE(calibrator_->running().has_value());
  EXPECT_TRUE(store_->List()->empty());
  failure_ = absl::OkStatus();
  auto third = std::make_shared<Recorder>();
  Start(Request(), third);
  EXPECT_TRUE(third->Await().ok());
}

TEST_F(CalibratorTest, UnwritableStoreIsSaid) {
  auto listener = std::make_shared<Recorder>();
  Start(Request(), listener);
  ASSERT_TRUE(gate_.AwaitVisitor());
  std::filesystem::remove_all(directory_);
  gate_.Open();
  const auto result = listener->Await();
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("cannot be stored"));
  EXPECT_THAT(std::string(result.status().message()), HasSubstr(directory_));
  EXPECT_EQ(announced_, 0);
}

TEST_F(CalibratorTest, ShutdownEndsListenersWithCancelled) {
  auto listener = std::make_shared<Recorder>();
  Start(Request(), listener);
  ASSERT_TRUE(gate_.AwaitVisitor());
  runner_->RequestStop();
  gate_.Allow(1);  // the slice that is under way
  runner_->Stop();
  ASSERT_TRUE(listener->done());
  EXPECT_EQ(listener->Await().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(alive_, 0);
  EXPECT_FALSE(calibrator_->running().has_value());

  auto late = std::make_shared<Recorder>();
  const auto refused = calibrator_->Start(Request(5), late);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(late->heard());
  EXPECT_FALSE(calibrator_->running().has_value());
}

TEST_F(CalibratorTest, BadRequestsAreNamed) {
  auto listener = std::make_shared<Recorder>();
  CalibrationRequest request = Request();
  request.settings.prefix_tokens = 1;
  absl::Status status = calibrator_->Start(request, listener).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("prefix_tokens"));

  request = Request();
  request.settings.prefix_tokens = 61;  // 61 + 4 > 64
  EXPECT_EQ(calibrator_->Start(request, listener).status().code(),
            absl::StatusCode::kInvalidArgument);

  request = Request();
  request.corpus = std::vector<std::string>{"too short"};
  EXPECT_EQ(calibrator_->Start(request, listener).status().code(),
            absl::StatusCode::kInvalidArgument);

  request = Request();
  request.corpus = std::string("poems");
  EXPECT_EQ(calibrator_->Start(request, listener).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(listener->heard());
  EXPECT_EQ(probes_, 0);
}

TEST_F(CalibratorTest, ManyCallersAtOnce) {
  gate_.Open();
  constexpr int kThreads = 6;
  constexpr int kRounds = 60;
  std::atomic<int> finished = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < kRounds; ++round) {
        auto listener = std::make_shared<Recorder>();
        CalibrationRequest request = Request(static_cast<uint64_t>(round % 3));
        request.force = round % 2 == 0;
        const auto id = calibrator_->Start(request, listener);
        if (!id.ok()) {
          EXPECT_EQ(id.status().code(), absl::StatusCode::kResourceExhausted) << id.status();
          EXPECT_FALSE(listener->heard());
          continue;
        }
        if ((round + t) % 3 == 0) {
          calibrator_->Leave(*id, listener.get());
        } else {
          const auto result = listener->Await();
          EXPECT_TRUE(result.ok()) << result.status();
          ++finished;
        }
        (void)calibrator_->running();
        EXPECT_TRUE(listener->ordered());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(finished, kThreads);
}

}  // namespace
}  // namespace ripplekv
