#include "calibration/calibrator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/calibration/calibrator_fakes.h"

namespace ripplekv {
namespace {

using testing::ElementsAre;
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
    parts.make_probe =
        [this](const CalibrationSettings&,
               CalibrationExamples examples) -> absl::StatusOr<std::unique_ptr<SensitivityProbe>> {
      ++probes_;
      return std::make_unique<FakeProbe>(std::move(examples), &gate_, failure_, &alive_);
    };
    parts.submit = [this](std::shared_ptr<BackgroundJob> job) {
      return runner_->Submit(std::move(job));
    };
    parts.on_profile = [this](const CalibrationResult&) {
      ++announced_;
      if (on_profile_) on_profile_();
    };
    parts.on_failure = [this](const std::string& job_id, const absl::Status& status) {
      const std::lock_guard lock(failures_mutex_);
      failures_.push_back(job_id + " " + absl::StatusCodeToString(status.code()));
    };
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

  std::vector<std::string> failures() {
    const std::lock_guard lock(failures_mutex_);
    return failures_;
  }

  // A measurement whose profile cannot be stored once `breaks` was called: what its caller gets.
  absl::Status FailsToStore(const std::function<void()>& breaks) {
    auto listener = std::make_shared<Recorder>();
    const std::string id = Start(Request(), listener);
    EXPECT_TRUE(gate_.AwaitVisitor());
    breaks();
    gate_.Open();
    const absl::Status status = listener->Await().status();
    EXPECT_THAT(std::string(status.message()), HasSubstr("cannot be stored"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(directory_));
    EXPECT_EQ(announced_, 0);
    EXPECT_THAT(failures(), ElementsAre(id + " " + absl::StatusCodeToString(status.code())));
    const CalibrationRecord record = calibrator_->List().at(0);
    EXPECT_EQ(record.state, JobState::kFailed);
    EXPECT_EQ(record.error_code, status.code());
    EXPECT_EQ(record.error, status.message());
    return status;
  }

  // The store is whole and the same request succeeds.
  void ExpectNextSucceeds() {
    EXPECT_TRUE(store_->List()->empty());
    auto next = std::make_shared<Recorder>();
    Start(Request(), next);
    EXPECT_TRUE(next->Await().ok()) << next->Await().status();
    EXPECT_EQ(store_->List()->size(), 1u);
    EXPECT_EQ(announced_, 1);
  }

  std::string directory_;
  std::shared_ptr<ProfileStore> store_;
  std::function<void()> on_profile_;  // set before the job runs
  std::mutex failures_mutex_;
  std::vector<std::string> failures_;
  Gate gate_;
  absl::Status failure_;
  std::atomic<int> alive_ = 0;
  std::atomic<int> probes_ = 0;
  std::atomic<int> announced_ = 0;
  std::unique_ptr<Runner> runner_;
  std::unique_ptr<Calibrator> calibrator_;
};

std::vector<std::string> Ids(const std::vector<CalibrationRecord>& records) {
  std::vector<std::string> ids;
  for (const CalibrationRecord& record : records) ids.push_back(record.job_id());
  return ids;
}

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

TEST_F(CalibratorTest, SizesAreMeasuredOnExamplesOfTheirOwn) {
  CalibrationRequest request = Request();
  request.settings.examples = 1;
  request.settings.selector = StreamingLlm{.window = 2};
  request.settings.sizes = {
      .examples = 2, .prompt_tokens = {16}, .retentions = {0.5}, .kv_types = KvType::kBf16};
  auto listener = std::make_shared<Recorder>();
  Start(request, listener);
  gate_.Open();  // now that somebody hears of the progress
  const auto result = listener->Await();
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_FALSE(listener->progress().empty());
  EXPECT_EQ(listener->progress().front().probe.examples_total, 1);  // as the probe says
  EXPECT_EQ(result->profile.sensitivity, (std::vector<double>{97, 97.125, 97.25}));
  // Of 20 tokens, that end in "c" and in "a": the other text's end stands before each.
  EXPECT_EQ(result->profile.sizes.mean_kl, (std::vector<std::vector<double>>{{98}}));
  EXPECT_EQ(result->profile.sizes.mean_kl_error, (std::vector<std::vector<double>>{{1}}));
  EXPECT_EQ(*store_->Get(result->profile.id()), result->profile);

  request.settings.sizes.prompt_tokens = {60};
  const absl::Status status = calibrator_->Start(request, listener).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("size_examples is 2: the corpus's 2 texts give 0 of 60 + window_tokens"));
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
  EXPECT_THAT(failures(), ElementsAre(id + " CANCELLED"));
  EXPECT_EQ(calibrator_->List().at(0).state, JobState::kCancelled);

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

TEST_F(CalibratorTest, StoreThatIsGoneIsSaid) {
  const absl::Status status = FailsToStore([&] { std::filesystem::remove_all(directory_); });
  // Not NOT_FOUND: the caller asked for nothing that is missing.
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  std::filesystem::create_directory(directory_);
  ExpectNextSucceeds();
}

TEST_F(CalibratorTest, StoreThatCannotBeWrittenIsSaid) {
  // A file in its place: root, too, can make no file in it.
  const absl::Status status = FailsToStore([&] {
    std::filesystem::remove_all(directory_);
    std::ofstream(directory_) << "not a directory";
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  std::filesystem::remove(directory_);
  std::filesystem::create_directory(directory_);
  ExpectNextSucceeds();
}

TEST_F(CalibratorTest, StoreThatIsFullIsSaid) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);  // then write() fails
  const absl::Status status = FailsToStore([&] {
    const rlimit none = {.rlim_cur = 16, .rlim_max = before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_TRUE(std::filesystem::is_empty(directory_)) << "half-written files were left";
  ExpectNextSucceeds();
}

TEST_F(CalibratorTest, CancelEndsTheJobForAllItsListeners) {
  auto first = std::make_shared<Recorder>();
  auto second = std::make_shared<Recorder>();
  CalibrationRequest request = Request();
  request.detach = true;
  const std::string id = Start(request, first);
  Start(Request(), second);
  ASSERT_TRUE(gate_.AwaitVisitor());
  gate_.Allow(1);
  ASSERT_TRUE(first->AwaitProgress());
  const auto cancelled = calibrator_->Cancel(id, "the operator said so");
  ASSERT_TRUE(cancelled.ok()) << cancelled.status();
  EXPECT_EQ(cancelled->job_id(), id);
  EXPECT_EQ(cancelled->state, JobState::kCancelled);
  EXPECT_EQ(cancelled->listeners, 0);
  EXPECT_EQ(cancelled->error_code, absl::StatusCode::kCancelled);
  EXPECT_EQ(cancelled->error, "the operator said so");
  EXPECT_FALSE(calibrator_->running().has_value());
  gate_.Allow(1);  // the slice that was under way
  for (const auto& listener : {first, second}) {
    const absl::Status status = listener->Await().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
    EXPECT_EQ(status.message(), "the operator said so");
    EXPECT_TRUE(listener->ordered());
  }
  for (int i = 0; i < 2000 && alive_ > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(alive_, 0);
  EXPECT_TRUE(store_->List()->empty());
  EXPECT_EQ(announced_, 0);
  EXPECT_THAT(failures(), ElementsAre(id + " CANCELLED"));

  // Once is enough, and the way is free.
  const absl::Status again = calibrator_->Cancel(id, "again").status();
  EXPECT_EQ(again.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(again.message()), HasSubstr("CANCELLED"));
  gate_.Open();
  auto third = std::make_shared<Recorder>();
  const std::string next = Start(Request(), third);
  EXPECT_NE(next, id);
  EXPECT_TRUE(third->Await().ok());
  const absl::Status late = calibrator_->Cancel(next, "too late").status();
  EXPECT_EQ(late.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(late.message()), HasSubstr("SUCCEEDED"));
  const absl::Status unknown = calibrator_->Cancel("calibration-99", "what?").status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("calibration-99"));
  EXPECT_EQ(failures().size(), 1u);
}

TEST_F(CalibratorTest, NothingCancelsAJobThatStoresItsProfile) {
  auto listener = std::make_shared<Recorder>();
  std::string id;
  absl::Status refused;
  on_profile_ = [&] {  // within the job's last step
    refused = calibrator_->Cancel(id, "too late").status();
    calibrator_->Leave(id, listener.get());
    EXPECT_EQ(calibrator_->List().at(0).state, JobState::kRunning);
  };
  id = Start(Request(), listener);
  gate_.Open();
  auto second = std::make_shared<Recorder>();
  Start(Request(), second);  // joins, or finds it in the store
  ASSERT_TRUE(second->Await().ok());
  runner_->Stop();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("RUNNING"));
  EXPECT_THAT(failures(), ElementsAre());
  EXPECT_EQ(calibrator_->List().at(0).state, JobState::kSucceeded);
  EXPECT_EQ(announced_, 1);
}

TEST_F(CalibratorTest, ListsWhatRunsAndWhatEndedTheNewestFirst) {
  EXPECT_TRUE(calibrator_->List().empty());
  auto first = std::make_shared<Recorder>();
  CalibrationRequest request = Request(1);
  const std::string id = Start(request, first);
  ASSERT_TRUE(gate_.AwaitVisitor());
  CalibrationRecord record = calibrator_->List().at(0);
  EXPECT_EQ(record.job_id(), id);
  EXPECT_EQ(record.state, JobState::kRunning);
  EXPECT_EQ(record.profile_id, first->started().profile_id);
  EXPECT_EQ(record.settings, request.settings);
  EXPECT_EQ(record.corpus_name, "default");
  EXPECT_EQ(record.started_at.size(), std::string("2026-01-01T00:00:00Z").size());
  EXPECT_EQ(record.listeners, 1);
  EXPECT_FALSE(record.detached);
  EXPECT_EQ(record.error_code, absl::StatusCode::kOk);
  EXPECT_EQ(record.progress.probe.examples_total, 2);
  auto second = std::make_shared<Recorder>();
  request.detach = true;
  Start(request, second);
  record = calibrator_->List().at(0);
  EXPECT_EQ(record.listeners, 2);
  EXPECT_TRUE(record.detached);
  gate_.Open();
  EXPECT_TRUE(first->Await().ok());
  record = calibrator_->List().at(0);
  EXPECT_EQ(record.state, JobState::kSucceeded);
  EXPECT_EQ(record.listeners, 0);
  EXPECT_TRUE(record.detached);
  EXPECT_EQ(record.progress.probe.examples_done, 2);
  EXPECT_EQ(record.progress.probe.fraction, 1);
  const double seconds = record.progress.elapsed_seconds;
  EXPECT_GT(seconds, 0);
  EXPECT_EQ(calibrator_->List().at(0).progress.elapsed_seconds, seconds);  // the clock stands

  // What comes from the store is no measurement.
  auto stored = std::make_shared<Recorder>();
  EXPECT_EQ(Start(request, stored), "");
  EXPECT_EQ(calibrator_->List().size(), 1u);

  std::vector<std::string> ids = {id};
  request.force = true;
  for (size_t i = 0; i < kRememberedJobs; ++i) {
    auto listener = std::make_shared<Recorder>();
    ids.insert(ids.begin(), Start(request, listener));
    ASSERT_TRUE(listener->Await().ok());
  }
  ids.pop_back();  // the first one is forgotten
  EXPECT_EQ(Ids(calibrator_->List()), ids);
  EXPECT_EQ(calibrator_->Cancel(id, "").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(CalibratorTest, ShutdownEndsListenersWithUnavailable) {
  auto listener = std::make_shared<Recorder>();
  Start(Request(), listener);
  ASSERT_TRUE(gate_.AwaitVisitor());
  runner_->RequestStop();
  gate_.Allow(1);  // the slice that is under way
  runner_->Stop();
  ASSERT_TRUE(listener->done());
  EXPECT_EQ(listener->Await().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(alive_, 0);
  EXPECT_FALSE(calibrator_->running().has_value());
  EXPECT_EQ(calibrator_->List().at(0).state, JobState::kCancelled);
  EXPECT_EQ(failures().size(), 1u);

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
  constexpr int kThreads = 6;  // half of them cancel, too
  constexpr int kRounds = 60;
  std::atomic<int> finished = 0;
  std::array<std::atomic<int>, 4> states{};  // seen in lists
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
          if (t % 2 == 0 && round % 5 == 0) (void)calibrator_->Cancel(*id, "cancelled by the test");
          const auto result = listener->Await();
          if (result.ok()) {
            ++finished;
          } else {
            EXPECT_EQ(result.status().message(), "cancelled by the test");
          }
        }
        (void)calibrator_->running();
        for (const CalibrationRecord& record : calibrator_->List()) {
          ++states.at(static_cast<size_t>(record.state));
        }
        EXPECT_TRUE(listener->ordered());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(finished, kThreads);
  EXPECT_GT(states[static_cast<size_t>(JobState::kSucceeded)], 0);
  EXPECT_EQ(states[static_cast<size_t>(JobState::kFailed)], 0);
}

}  // namespace
}  // namespace ripplekv
