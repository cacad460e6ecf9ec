#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/server/engine/engine_fixture.h"

namespace ripplekv {
namespace {

using ::testing::HasSubstr;

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
  EXPECT_EQ(usage.cache.full_bytes,
            static_cast<size_t>(30 * prompt) * engine_->kv_layout().RowBytes());

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
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
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
                     TestTokenizer(), Storing(*MakePlan(Full{}), KvType::kF32), nullptr)
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--kv-memory"));
}

TEST_F(EngineTest, BadRequestsAndAFullQueueAreRefusedAtOnce) {
  struct Observer : EngineObserver {
    void OnRefused(RefusalReason, const absl::Status& status) override {
      refused.push_back(status.code());
    }
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
  engine_->Shutdown();  // the observer dies first
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

TEST_F(EngineTest, BackgroundSlicesGoBetweenTokensAndStepsNeverWaitForTwo) {
  struct Observer : EngineObserver {
    void OnStep(const StepRecord& step) override { steps.push_back(step); }
    std::vector<StepRecord> steps;
  } observer;
  Start({}, MakePlan(Retention{0.5}), 2, &observer);
  std::vector<std::string> trace;
  Gate released, decoding;
  auto sink = std::make_shared<Collector>();
  sink->on_token = [&](int tokens) {
    if (tokens == 1) decoding.Open();
  };
  GenerateRequest request = Ask(kStory, 60);
  request.stopping.ignore_eos = true;
  Submit(std::move(request), sink);
  decoding.Wait();
  auto job = std::make_shared<TracingJob>(&trace, "job", 12);
  job->released = &released;
  job->on_step = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
  ASSERT_TRUE(engine_->SubmitBackground(std::move(job)).ok());
  EXPECT_TRUE(sink->Wait().status().ok());
  released.Wait();
  engine_->Shutdown();
  int slices = 0, beside_tokens = 0;
  for (const StepRecord& step : observer.steps) {
    if (step.slice != StepRecord::Slice::kBackground) continue;
    ++slices;
    beside_tokens += step.decode_rows;
  }
  EXPECT_EQ(slices, 12);
  EXPECT_EQ(beside_tokens, 12) << "every slice came with a token of the running request";
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
  engine_->SetPlan(Storing(*MakePlan(Retention{0.5}), KvType::kF32));
  auto after = Submit(Ask(kStory, 1));
  gate.Open();
  for (auto* sink : {&before, &waiting, &after}) ASSERT_TRUE((*sink)->Wait().status().ok());
  const int64_t prompt = after->completion().usage.prompt_tokens;
  EXPECT_EQ(before->completion().cache.layers[3].positions, prompt);
  EXPECT_EQ(waiting->completion().cache.layers[3].positions, prompt);
  EXPECT_EQ(after->completion().cache.layers[3].positions, prompt / 2);
  size_t quota = 0;
  for (const LayerStats& layer : engine_->stats().layers) quota += layer.quota_bytes;
  EXPECT_GT(quota, engine_->stats().kv_total_bytes / 2);
  EXPECT_LE(quota, engine_->stats().kv_total_bytes);
}

TEST_F(EngineTest, ShutdownEndsEverythingWithUnavailable) {
  EngineOptions options;
  options.max_batch = 1;
  Start(options);
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
