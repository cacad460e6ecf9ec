#include "server/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/server/engine/test_model.h"

namespace ripplekv {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

// Collects one request's events; hooks run on the engine's thread.
class Collector : public GenerationSink {
 public:
  std::function<void()> on_start = [] {};
  std::function<void(int tokens)> on_token = [](int) {};

  void OnStart() override { on_start(); }
  void OnTokens(TokenChunk chunk) override {
    int count;
    {
      std::lock_guard lock(mutex_);
      EXPECT_FALSE(ended_) << "tokens after the end";
      text_ += chunk.text;
      tokens_.insert(tokens_.end(), chunk.token_ids.begin(), chunk.token_ids.end());
      for (auto& logprob : chunk.logprobs) logprobs_.push_back(logprob);
      count = static_cast<int>(tokens_.size());
    }
    on_token(count);
  }
  void OnComplete(Completion completion) override {
    completion_ = std::move(completion);
    End();
  }
  void OnError(absl::Status status) override {
    EXPECT_FALSE(status.ok());
    status_ = std::move(status);
    End();
  }
  // Waits for the end.
  const Collector& Wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, seconds(300), [&] { return ended_; })) << "no end";
    return *this;
  }
  const absl::Status& status() const { return status_; }
  const Completion& completion() const { return completion_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  const std::vector<TokenLogprob>& logprobs() const { return logprobs_; }
  const std::string& text() const { return text_; }

 private:
  void End() {
    std::lock_guard lock(mutex_);
    EXPECT_FALSE(ended_) << "a second end";
    ended_ = true;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::string text_;
  std::vector<int32_t> tokens_;
  std::vector<TokenLogprob> logprobs_;
  absl::Status status_;
  Completion completion_;
};

// A gate that a thread can be held at.
class Gate {
 public:
  void Open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, seconds(300), [&] { return open_; }));
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

std::shared_ptr<const Plan> MakePlan(const Size& size, int64_t min_positions = 0) {
  PlanSpec spec;
  spec.layers = TestWeights()->config().layers;
  spec.size = size;
  spec.min_positions = min_positions;
  return std::make_shared<const Plan>(*Plan::Make(spec));
}

class EngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (TestWeights() == nullptr || TestTokenizer() == nullptr) GTEST_SKIP() << "failed above";
  }
  void Start(EngineOptions options = {},
             std::shared_ptr<const Plan> plan = MakePlan(Retention{0.5}), int threads = 2,
             EngineObserver* observer = nullptr) {
    engine_.reset();
    pool_ = std::make_unique<ThreadPool>(threads);
    options.check_invariants = true;
    auto engine =
        Engine::Create(options, *Decoder::Create(TestWeights(), ComputeType::kF32, pool_.get()),
                       TestTokenizer(), std::move(plan), observer);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }
  static GenerateRequest Ask(const std::string& text, int32_t max_tokens) {
    GenerateRequest request;
    request.prompt = *TestTokenizer()->Encode(text, SpecialTokens::kParse);
    request.stopping.max_tokens = max_tokens;
    return request;
  }
  std::shared_ptr<Collector> Submit(GenerateRequest request,
                                    std::shared_ptr<Collector> sink = nullptr) {
    if (sink == nullptr) sink = std::make_shared<Collector>();
    auto handle = engine_->Submit(std::move(request), sink);
    EXPECT_TRUE(handle.ok()) << handle.status();
    if (handle.ok()) handle_ = *handle;
    return sink;
  }
  void ExpectAllFree() {
    const EngineStats stats = engine_->stats();
    EXPECT_EQ(stats.kv_used_bytes, 0u);
    EXPECT_EQ(stats.kv_reserved_bytes, 0u);
    EXPECT_EQ(stats.prefill_layer_bytes, 0u);
    EXPECT_EQ(stats.running, 0);
    for (const LayerStats& layer : stats.layers)
      EXPECT_EQ(layer.used_bytes + layer.reserved_bytes, 0u);
  }

  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Engine> engine_;
  std::shared_ptr<RequestHandle> handle_;
};

const char kStory[] =
    "The lighthouse stood at the end of a long spit of sand. Every evening the keeper climbed its "
    "two hundred steps, "
    "trimmed the wick, and wrote the hour, the wind and the height of the water in a ledger bound "
    "in green cloth. "
    "In the winter of the great storm the ledger was lost, and with it the only record of what the "
    "sea had done. "
    "Years later a child found it under the floor of the boat house and read it aloud to the "
    "village. It began:";

void ExpectSameOutput(const Collector& a, const Collector& b) {
  EXPECT_EQ(a.tokens(), b.tokens());
  EXPECT_EQ(a.text(), b.text());
  ASSERT_EQ(a.logprobs().size(), b.logprobs().size());
  for (size_t i = 0; i < a.logprobs().size(); ++i) {
    EXPECT_EQ(a.logprobs()[i].logprob, b.logprobs()[i].logprob);  // the same bits
    EXPECT_EQ(a.logprobs()[i].top, b.logprobs()[i].top);
  }
}

TEST_F(EngineTest, FullRetentionOneAndShortPromptsAgreeBitForBit) {
  Start();
  auto run = [&](const std::string& text, std::optional<Size> size) {
    GenerateRequest request = Ask(text, 6);
    request.kv.size = size;
    request.logprobs = 5;
    request.next_token_kl = true;
    auto sink = Submit(std::move(request));
    sink->Wait();
    EXPECT_TRUE(sink->status().ok()) << sink->status();
    return sink;
  };
  auto full = run(kStory, Full{});
  auto one = run(kStory, Retention{1.0});
  ExpectSameOutput(*full, *one);
  ASSERT_EQ(full->logprobs().size(), 6u);
  EXPECT_EQ(full->logprobs()[0].top.size(), 5u);
  EXPECT_EQ(full->logprobs()[0].token, full->logprobs()[0].top[0].first)
      << "greedy is the likeliest";
  // Other kernels over the same rows: rounding only.
  ASSERT_TRUE(full->completion().next_token_kl.has_value());
  EXPECT_LT(std::abs(*full->completion().next_token_kl), 1e-6);

  auto half = run(kStory, std::nullopt);
  EXPECT_GT(*half->completion().next_token_kl, 1e-6) << "half of the cache is gone";
  const auto& usage = half->completion();
  const int64_t prompt = usage.usage.prompt_tokens;
  EXPECT_EQ(usage.cache.layers.size(), 30u);
  for (const LayerUsage& layer : usage.cache.layers) EXPECT_EQ(layer.positions, prompt / 2);
  EXPECT_EQ(usage.cache.kept_bytes,
            static_cast<size_t>(30 * (prompt / 2)) * engine_->kv_layout().RowBytes());
  EXPECT_EQ(usage.cache.full_bytes, static_cast<size_t>(30 * prompt) * engine_->kv_layout().RowBytes());

  // 20-odd tokens lie below the floor of sinks + window + 1.
  ExpectSameOutput(*run("A short question about the sea:", Full{}),
                   *run("A short question about the sea:", Retention{0.1}));
  ExpectAllFree();
}

TEST_F(EngineTest, TokensAndLogprobsDoNotDependOnThreads) {
  std::vector<std::shared_ptr<Collector>> results;
  for (int threads : {1, 2}) {
    Start({}, MakePlan(Retention{0.5}), threads);
    GenerateRequest request = Ask(kStory, 8);
    request.sampling.temperature = 0.9;
    request.sampling.top_p = 0.95;
    request.sampling.seed = 1234;
    request.logprobs = 3;
    results.push_back(Submit(std::move(request)));
    results.back()->Wait();
    EXPECT_EQ(results.back()->completion().seed, 1234u);
  }
  ExpectSameOutput(*results[0], *results[1]);
}

TEST_F(EngineTest, AReportedSeedRepeatsTheOutput) {
  Start();
  GenerateRequest request = Ask("Once upon a time", 12);
  request.sampling.temperature = 1.5;
  auto first = Submit(request);
  first->Wait();
  request.sampling.seed = first->completion().seed;
  auto again = Submit(request);
  again->Wait();
  EXPECT_EQ(first->tokens(), again->tokens());
  request.sampling.seed = first->completion().seed + 1;
  auto other = Submit(request);
  other->Wait();
  EXPECT_NE(first->tokens(), other->tokens());
}

TEST_F(EngineTest, StopsWhereItIsTold) {
  Start();
  GenerateRequest request = Ask(
      "<|im_start|>user\nCount from one to ten in digits.<|im_end|>\n<|im_start|>assistant\n", 24);
  auto plain = Submit(request);
  plain->Wait();
  ASSERT_TRUE(plain->status().ok()) << plain->status();
  EXPECT_EQ(plain->text(), *TestTokenizer()->Decode(plain->tokens(), true));
  EXPECT_EQ(plain->completion().usage.completion_tokens,
            static_cast<int64_t>(plain->tokens().size()));
  ASSERT_GT(plain->text().size(), 12u);

  const std::string stop = plain->text().substr(5, 6);
  const size_t at = plain->text().find(stop);
  request.stopping.stop_strings = {"never said", stop};
  auto stopped = Submit(request);
  stopped->Wait();
  EXPECT_EQ(stopped->text(), plain->text().substr(0, at));
  EXPECT_EQ(stopped->completion().finish_reason, FinishReason::kStopString);
  EXPECT_EQ(stopped->completion().matched_stop_string, stop);

  request.stopping.stop_strings.clear();
  request.stopping.stop_token_ids = {plain->tokens()[3]};
  const auto first = std::find(plain->tokens().begin(), plain->tokens().end(), plain->tokens()[3]);
  auto by_id = Submit(request);
  by_id->Wait();
  EXPECT_EQ(by_id->tokens(), std::vector<int32_t>(plain->tokens().begin(), first + 1));
  EXPECT_EQ(by_id->completion().finish_reason, FinishReason::kStopTokenId);
  EXPECT_EQ(by_id->completion().matched_stop_token, plain->tokens()[3]);

  request.stopping.max_tokens = 24;
  request.stopping.min_tokens = 8;
  auto longer = Submit(request);
  longer->Wait();
  ASSERT_GE(longer->tokens().size(), 8u);
  for (size_t i = 0; i < 8; ++i) EXPECT_NE(longer->tokens()[i], plain->tokens()[3]);
}

TEST_F(EngineTest, CancellationFreesEverything) {
  Start();
  // Queued behind a request that is held at its start.
  Gate gate;
  auto holder = std::make_shared<Collector>();
  holder->on_start = [&] { gate.Wait(); };
  Submit(Ask("Hold", 1), holder);
  auto queued = Submit(Ask(kStory, 5));
  handle_->Cancel();
  // While prefilling: cancelled before its first layer, and from its own first token on.
  auto prefilling = std::make_shared<Collector>();
  Submit(Ask(kStory, 5), prefilling);
  auto prefilling_handle = handle_;
  prefilling->on_start = [&] { prefilling_handle->Cancel(); };
  auto decoding = std::make_shared<Collector>();
  GenerateRequest endless = Ask(kStory, 200);
  endless.stopping.ignore_eos = true;
  Submit(endless, decoding);
  auto decoding_handle = handle_;
  decoding->on_token = [&](int tokens) {
    if (tokens == 3) decoding_handle->Cancel();
  };
  gate.Open();
  holder->Wait();
  for (auto* sink : {&queued, &prefilling, &decoding}) {
    EXPECT_EQ((*sink)->Wait().status().code(), absl::StatusCode::kCancelled);
  }
  EXPECT_TRUE(queued->tokens().empty());
  EXPECT_TRUE(prefilling->tokens().empty());
  EXPECT_EQ(decoding->tokens().size(), 3u);
  ExpectAllFree();
  EXPECT_TRUE(Submit(Ask("Still there?", 2))->Wait().status().ok());
}

TEST_F(EngineTest, DeadlinesEndQueuedAndRunningRequests) {
  Start();
  GenerateRequest late = Ask(kStory, 5);
  late.deadline = Clock::now() - seconds(1);
  EXPECT_EQ(Submit(late)->Wait().status().code(), absl::StatusCode::kDeadlineExceeded);
  GenerateRequest running = Ask(kStory, 500);
  running.stopping.ignore_eos = true;
  auto sink = std::make_shared<Collector>();
  running.deadline = Clock::now() + std::chrono::milliseconds(1500);
  sink->on_start = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1500)); };
  EXPECT_EQ(Submit(running, sink)->Wait().status().code(), absl::StatusCode::kDeadlineExceeded);
  ExpectAllFree();
}

TEST_F(EngineTest, WhatCanNeverFitIsRefusedWithTheFigures) {
  // One full layer of 300 tokens, and 90 pages: three a layer, 96 rows of prompt and output.
  const size_t page = KvPageLayout::BytesForRowsPerPage(KvType::kF32, 3, 64, 32);
  EngineOptions options;
  options.max_prompt_tokens = 300;
  options.kv_memory_bytes = 300 * 2 * 3 * 64 * 4 + 90 * page + 64;
  Start(options, MakePlan(Full{}));
  GenerateRequest request;
  request.prompt.assign(80, 500);
  request.stopping.max_tokens = 17;
  auto refused = engine_->Submit(request, std::make_shared<Collector>());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()),
              ::testing::AllOf(HasSubstr("needs 120 KV pages"), HasSubstr("the arena has 90"),
                               HasSubstr("max_tokens up to 16 would fit")));
  request.stopping.max_tokens = 16;
  auto sink = Submit(request);
  EXPECT_TRUE(sink->Wait().status().ok()) << sink->status();
  EXPECT_EQ(sink->completion().finish_reason == FinishReason::kMaxTokens,
            sink->tokens().size() == 16);
  ExpectAllFree();

  options.kv_memory_bytes = 300 * 2 * 3 * 64 * 4 + 10 * page;
  const absl::Status status =
      Engine::Create(options, *Decoder::Create(TestWeights(), ComputeType::kF32, pool_.get()),
                     TestTokenizer(), MakePlan(Full{}), nullptr)
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--kv-memory"));
}

TEST_F(EngineTest, BadRequestsAndAFullQueueAreRefusedAtOnce) {
  struct Observer : EngineObserver {
    void OnRefused(RefusalReason, const absl::Status& status) override { refused.push_back(status.code()); }
    void OnRequestEnd(const absl::Status& status, int64_t prompt, int64_t completion) override {
      ended += status.ok();
      tokens += prompt + completion;
    }
    std::vector<absl::StatusCode> refused;
    int ended = 0;
    int64_t tokens = 0;
  } observer;
  EngineOptions options;
  options.max_queue = 1;
  Start(options, MakePlan(Retention{0.5}), 2, &observer);
  GenerateRequest bad = Ask("x", 1);
  bad.sampling.top_p = 2;
  EXPECT_EQ(engine_->Submit(bad, std::make_shared<Collector>()).status().code(),
            absl::StatusCode::kInvalidArgument);

  Gate started, gate;
  auto holder = std::make_shared<Collector>();
  holder->on_start = [&] {
    started.Open();
    gate.Wait();
  };
  Submit(Ask("Hold on", 1), holder);
  started.Wait();
  auto waiting = Submit(Ask("Hold on", 1));
  EXPECT_EQ(engine_->stats().queued, 1);
  EXPECT_EQ(engine_->Submit(Ask("Hold on", 1), std::make_shared<Collector>()).status().code(),
            absl::StatusCode::kResourceExhausted);
  gate.Open();
  holder->Wait();
  waiting->Wait();
  ASSERT_TRUE(engine_->Drain(Clock::now() + seconds(60)).ok());
  EXPECT_EQ(observer.refused, (std::vector{absl::StatusCode::kInvalidArgument,
                                           absl::StatusCode::kResourceExhausted}));
  EXPECT_EQ(observer.ended, 2);
  EXPECT_EQ(observer.tokens, 2 * (2 + 1));
  EXPECT_EQ(engine_->Submit(Ask("Late", 1), std::make_shared<Collector>()).status().code(),
            absl::StatusCode::kUnavailable);
}

// Writes its steps into a trace; may fail or hold.
struct TracingJob : BackgroundJob {
  TracingJob(std::vector<std::string>* trace, std::string name, int steps)
      : trace(trace), name(std::move(name)), left(steps) {}
  ~TracingJob() override {
    if (released != nullptr) released->Open();
  }
  absl::Status Step() override {
    trace->push_back(name);
    --left;
    on_step();
    return left == 0 && fails ? absl::InternalError("no") : absl::OkStatus();
  }
  bool done() const override { return left == 0; }
  std::vector<std::string>* trace;  // the engine thread's until the job is released
  std::string name;
  int left;
  bool fails = false;
  Gate* released = nullptr;
  std::function<void()> on_step = [] {};
};

TEST_F(EngineTest, BackgroundJobsStepBetweenRequestsAndWhenIdle) {
  Start();
  std::vector<std::string> trace;
  Gate released, gate, first_step;
  auto job = std::make_shared<TracingJob>(&trace, "job", 5);
  job->released = &released;
  job->on_step = [&, n = 0]() mutable {
    if (n++ > 0) return;
    first_step.Open();
    gate.Wait();  // until three requests wait
  };
  ASSERT_TRUE(engine_->SubmitBackground(std::move(job)).ok());
  first_step.Wait();
  std::vector<std::shared_ptr<Collector>> sinks;
  for (int i = 0; i < 3; ++i) {
    auto sink = std::make_shared<Collector>();
    sink->on_start = [&trace, i] { trace.push_back("request " + std::to_string(i)); };
    sinks.push_back(Submit(Ask("Hi", 2), sink));
  }
  gate.Open();
  for (auto& sink : sinks) EXPECT_TRUE(sink->Wait().status().ok());
  released.Wait();
  EXPECT_EQ(trace, (std::vector<std::string>{"job", "request 0", "job", "request 1", "job",
                                             "request 2", "job", "job"}));
  // The engine lets go of the job before it publishes its gauges.
  for (int i = 0; i < 2000 && engine_->stats().background_jobs != 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(engine_->stats().background_jobs, 0);
}

TEST_F(EngineTest, SeveralJobsTakeTurnsAndAFailedOneIsLetGo) {
  Start();
  std::vector<std::string> trace;
  Gate a_released, b_released, gate;
  auto a = std::make_shared<TracingJob>(&trace, "a", 2);
  a->fails = true;
  a->released = &a_released;
  a->on_step = [&] { gate.Wait(); };
  auto b = std::make_shared<TracingJob>(&trace, "b", 3);
  b->released = &b_released;
  ASSERT_TRUE(engine_->SubmitBackground(std::move(a)).ok());
  ASSERT_TRUE(engine_->SubmitBackground(std::move(b)).ok());
  gate.Open();
  a_released.Wait();
  b_released.Wait();
  EXPECT_EQ(trace, (std::vector<std::string>{"a", "b", "a", "b", "b"}));
}

TEST_F(EngineTest, ANewPlanHoldsForRequestsSubmittedAfterIt) {
  Start({}, MakePlan(Full{}));
  Gate gate;
  auto before = std::make_shared<Collector>();
  before->on_start = [&] { gate.Wait(); };
  Submit(Ask(kStory, 1), before);
  auto waiting = Submit(Ask(kStory, 1));
  engine_->SetPlan(MakePlan(Retention{0.5}));
  auto after = Submit(Ask(kStory, 1));
  gate.Open();
  for (auto* sink : {&before, &waiting, &after}) ASSERT_TRUE((*sink)->Wait().status().ok());
  const int64_t prompt = after->completion().usage.prompt_tokens;
  EXPECT_EQ(before->completion().cache.layers[3].positions, prompt);
  EXPECT_EQ(waiting->completion().cache.layers[3].positions, prompt);
  EXPECT_EQ(after->completion().cache.layers[3].positions, prompt / 2);
  size_t quota = 0;
  for (const LayerStats& layer : engine_->stats().cache.layers) quota += layer.quota_bytes;
  EXPECT_GT(quota, engine_->stats().kv_total_bytes / 2);
  EXPECT_LE(quota, engine_->stats().kv_total_bytes);
}

TEST_F(EngineTest, ShutdownEndsEverythingWithUnavailable) {
  Start();
  Gate running;
  auto decoding = std::make_shared<Collector>();
  decoding->on_token = [&](int) { running.Open(); };
  GenerateRequest endless = Ask("Tell me a long story about the sea.", 2000);
  endless.stopping.ignore_eos = true;
  Submit(endless, decoding);
  auto queued = Submit(Ask("Another", 5));
  running.Wait();
  EXPECT_EQ(engine_->Drain(Clock::now()).code(), absl::StatusCode::kDeadlineExceeded);
  engine_->Shutdown();
  engine_->Shutdown();
  EXPECT_EQ(decoding->Wait().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(queued->Wait().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(engine_->Drain(Clock::now()).ok());
  ExpectAllFree();
}

}  // namespace
}  // namespace ripplekv
