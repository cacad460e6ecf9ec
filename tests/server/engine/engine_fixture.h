#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/engine/engine.h"
#include "tests/server/engine/test_model.h"

namespace ripplekv {

using std::chrono::seconds;

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

// The end of a request that answers once.
template <typename Sink, typename Result>
class Answer : public Sink {
 public:
  std::function<void()> on_start = [] {};
  std::function<void()> at_end = [] {};  // before Wait returns
  void OnStart() override { on_start(); }
  void OnComplete(Result result) override { End(std::move(result)); }
  void OnError(absl::Status status) override { End(std::move(status)); }
  const absl::StatusOr<Result>& Wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, seconds(300), [&] { return ended_; })) << "no end";
    return result_;
  }

 private:
  void End(absl::StatusOr<Result> result) {
    at_end();
    std::lock_guard lock(mutex_);
    EXPECT_FALSE(ended_) << "a second end";
    result_ = std::move(result);
    ended_ = true;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  absl::StatusOr<Result> result_;
};
using ScoreAnswer = Answer<ScoreSink, ScoreResult>;
using ContextAnswer = Answer<ContextSink, ContextInfo>;

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

inline std::shared_ptr<const Plan> MakePlan(const Size& size, int64_t min_positions = 0) {
  PlanSpec spec;
  spec.layers = TestWeights()->config().layers;
  spec.size = size;
  spec.min_positions = min_positions;
  return std::make_shared<const Plan>(*Plan::Make(spec));
}

// The same plan with rows stored so.
inline std::shared_ptr<const Plan> Storing(const Plan& plan, KvTypes types) {
  PlanSpec spec = plan.spec();
  spec.kv_types = types;
  return std::make_shared<const Plan>(*Plan::Make(std::move(spec)));
}

class EngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    weights_ = TestWeights();
    tokenizer_ = TestTokenizer();
    if (weights_ == nullptr || tokenizer_ == nullptr) GTEST_SKIP() << "failed above";
  }
  void Start(EngineOptions options = {},
             std::shared_ptr<const Plan> plan = MakePlan(Retention{0.5}), int threads = 2,
             EngineObserver* observer = nullptr) {
    engine_.reset();
    pool_ = std::make_unique<ThreadPool>(threads);
    options.check_invariants = true;
    auto decoder = *Decoder::Create(weights_, compute_, pool_.get());
    plan = Storing(*plan, kv_types_.value_or(decoder->kv_type()));
    auto engine =
        Engine::Create(options, std::move(decoder), tokenizer_, std::move(plan), observer);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }
  std::vector<int32_t> Tokens(const std::string& text) {
    return *tokenizer_->Encode(text, SpecialTokens::kParse);
  }
  GenerateRequest Ask(const std::string& text, int32_t max_tokens) {
    GenerateRequest request;
    request.prompt = *tokenizer_->Encode(text, SpecialTokens::kParse);
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
  absl::StatusOr<ScoreResult> Score(ScoreRequest request) {
    auto sink = std::make_shared<ScoreAnswer>();
    auto handle = engine_->Submit(std::move(request), sink);
    if (!handle.ok()) return handle.status();
    return sink->Wait();
  }
  absl::StatusOr<ContextInfo> CreateContext(const std::vector<int32_t>& prompt,
                                            const std::string& owner = "anonymous",
                                            const KvParams& kv = {}) {
    auto sink = std::make_shared<ContextAnswer>();
    ContextRequest request;
    request.prompt = prompt;
    request.owner = owner;
    request.kv = kv;
    auto handle = engine_->Submit(std::move(request), sink);
    if (!handle.ok()) return handle.status();
    return sink->Wait();
  }
  std::shared_ptr<const ContextLease> Lease(const std::string& id,
                                            const std::string& owner = "anonymous") {
    auto lease = engine_->contexts().Use(owner, id, Clock::now());
    EXPECT_TRUE(lease.ok()) << lease.status();
    return std::make_shared<const ContextLease>(*std::move(lease));
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

  std::shared_ptr<const Weights> weights_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  ComputeType compute_ = ComputeType::kF32;
  std::optional<KvTypes> kv_types_;  // of engines started from now on; null: what they compute in
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Engine> engine_;
  std::shared_ptr<RequestHandle> handle_;
};

inline const char kStory[] =
    "The lighthouse stood at the end of a long spit of sand. Every evening the keeper climbed its "
    "two hundred steps, "
    "trimmed the wick, and wrote the hour, the wind and the height of the water in a ledger bound "
    "in green cloth. "
    "In the winter of the great storm the ledger was lost, and with it the only record of what the "
    "sea had done. "
    "Years later a child found it under the floor of the boat house and read it aloud to the "
    "village. It began:";

inline void ExpectSameOutput(const Collector& a, const Collector& b) {
  EXPECT_EQ(a.tokens(), b.tokens());
  EXPECT_EQ(a.text(), b.text());
  ASSERT_EQ(a.logprobs().size(), b.logprobs().size());
  for (size_t i = 0; i < a.logprobs().size(); ++i) {
    EXPECT_EQ(a.logprobs()[i].logprob, b.logprobs()[i].logprob);  // the same bits
    EXPECT_EQ(a.logprobs()[i].top, b.logprobs()[i].top);
  }
}

}  // namespace ripplekv
