// A request's output has the same bits alone and in any company: random mixes of prompts, arrivals,
// samplers, contexts, plans (the server's own chooses a type for each layer), types, growth caps,
// scores and cancellations against each request run alone by an engine that has nothing else to do.
// RIPPLEKV_MIXES=N runs N mixes instead of 200.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/engine/tiny_requests.h"

namespace ripplekv {
namespace {

using Random = std::mt19937_64;

int Between(Random& random, int low, int high) {
  return low + static_cast<int>(random() % static_cast<uint64_t>(high - low + 1));
}
bool OneIn(Random& random, int n) { return random() % static_cast<uint64_t>(n) == 0; }

std::vector<int32_t> RandomTokens(Random& random, int low, int high) {
  std::vector<int32_t> tokens(static_cast<size_t>(Between(random, low, high)));
  for (int32_t& id : tokens) id = Between(random, 0, 255);
  return tokens;
}

KvParams RandomKv(Random& random) {
  KvParams kv;
  switch (Between(random, 0, 4)) {
    case 0:
      kv.size = Full{};
      break;
    case 1:
      kv.size = Retention{0.05 * Between(random, 1, 20)};
      break;
    case 2:
      kv.size = TotalPositions{Between(random, 40, 800)};
      break;
    default:
      break;
  }
  if (OneIn(random, 3)) kv.key_type = kKvTypes[Between(random, 0, 3)];
  if (OneIn(random, 3)) kv.value_type = kKvTypes[Between(random, 0, 3)];
  if (OneIn(random, 4)) kv.allocator = UniformAllocator{};
  if (OneIn(random, 4)) kv.allocator = RippleAllocator{.r = 1.0 * Between(random, 1, 8)};
  if (OneIn(random, 2)) {
    const SnapKv snapkv = {
        .window = Between(random, 1, 40), .kernel = 3, .pooling = Pooling::kMean};
    const std::vector<SelectorSpec> all = {
        snapkv,
        snapkv,
        H2o{.queries = Between(random, 1, 400), .normalised = OneIn(random, 2)},
        RecentAttention{.queries = Between(random, 1, 400), .pooling = Pooling::kMax},
        MixedAttention{.snapkv = snapkv, .queries = Between(random, 1, 400)},
        StreamingLlm{},
        RandomPositions{.seed = static_cast<uint64_t>(Between(random, 0, 9))}};
    kv.selector = all[static_cast<size_t>(Between(random, 0, static_cast<int>(all.size()) - 1))];
  }
  return kv;
}

// One request of a mix; run twice.
struct Item {
  GenerateRequest generate;
  ScoreRequest score;    // instead, where it has continuations
  int context = -1;      // index of the mix's contexts
  int cancel_after = 0;  // tokens; 0: not at all
  int arrival = 0;       // tokens of the whole mix that come before it is submitted

  bool scores() const { return !score.continuations.empty(); }
};

struct Mix {
  std::vector<ContextRequest> contexts;
  std::vector<Item> items;
};

Item RandomItem(Random& random, int contexts, bool may_end_early) {
  Item item;
  if (OneIn(random, 3)) item.context = Between(random, 0, contexts - 1);
  if (may_end_early && OneIn(random, 3)) {
    item.score.prompt = RandomTokens(random, item.context >= 0 ? 0 : 1, 200);
    for (int i = Between(random, 1, 3); i > 0; --i) {
      item.score.continuations.push_back(RandomTokens(random, 1, 40));
    }
    if (item.context < 0) item.score.kv = RandomKv(random);
    return item;
  }
  GenerateRequest& r = item.generate;
  r.prompt = RandomTokens(random, 1, OneIn(random, 4) ? 500 : 120);
  r.stopping.max_tokens = Between(random, 160, 200);
  r.stopping.ignore_eos = !may_end_early || OneIn(random, 2);
  if (item.context < 0) r.kv = RandomKv(random);
  if (OneIn(random, 3)) r.kv.growth_cap = Between(random, 16, 40);
  if (OneIn(random, 2)) {
    r.sampling.temperature = 0.1 * Between(random, 1, 15);
    r.sampling.seed = random();
    if (OneIn(random, 2)) r.sampling.top_p = 0.9;
    if (OneIn(random, 2)) r.sampling.top_k = Between(random, 1, 50);
    if (OneIn(random, 3)) r.sampling.min_p = 0.05;
  } else {
    r.sampling.seed = 1;
  }
  if (OneIn(random, 4)) r.sampling.repetition_penalty = 1.3;
  if (OneIn(random, 4)) r.sampling.presence_penalty = 0.5;
  r.logprobs = Between(random, 0, 3);
  r.next_token_kl = item.context < 0 && OneIn(random, 3);
  if (may_end_early && OneIn(random, 3)) item.cancel_after = Between(random, 1, 60);
  return item;
}

std::string Describe(const Mix& mix, const Item& item) {
  const auto& prompt = item.scores() ? item.score.prompt : item.generate.prompt;
  std::string text = std::to_string(prompt.size()) + " tokens";
  if (item.context >= 0) {
    text += " over a context of " +
            std::to_string(mix.contexts[static_cast<size_t>(item.context)].prompt.size());
  }
  if (item.scores()) return text + ", scores";
  if (item.generate.kv.growth_cap) {
    text += ", growth cap " + std::to_string(*item.generate.kv.growth_cap);
  }
  if (item.generate.kv.size) text += ", size of its own";
  if (item.generate.kv.key_type) {
    text += std::string(", ") + KvTypeName(*item.generate.kv.key_type) + " keys";
  }
  if (item.generate.kv.value_type) {
    text += std::string(", ") + KvTypeName(*item.generate.kv.value_type) + " values";
  }
  return text;
}

Mix RandomMix(uint64_t seed) {
  Random random(seed);
  Mix mix;
  mix.contexts.resize(2);
  for (ContextRequest& context : mix.contexts) {
    context.prompt = RandomTokens(random, 1, 300);
    context.owner = "me";
    context.kv = RandomKv(random);
  }
  const int count = Between(random, 14, 20);
  for (int i = 0; i < count; ++i) {
    mix.items.push_back(RandomItem(random, 2, /*may_end_early=*/i % 3 == 2));
    // Most are there from the start, the others come while those run.
    if (i >= 10) mix.items.back().arrival = Between(random, 1, 300);
  }
  return mix;
}

struct Outcome {
  absl::Status status;
  std::vector<int32_t> tokens;
  std::vector<TokenLogprob> logprobs;
  std::string text;
  std::vector<std::optional<double>> kl;
  int64_t compactions = 0;
  std::vector<ContinuationScore> scores;
};

// Submits what comes later on the engine's own thread, when the mix has given so many tokens: no
// machine is too slow for it.
class Arrivals {
 public:
  void Add(int tokens, std::function<void()> submit) { later_.emplace(tokens, std::move(submit)); }
  void Submitted() { ++running_; }
  void Tick() {
    ++tokens_;
    while (!later_.empty() && later_.begin()->first <= tokens_) SubmitNext();
  }
  void End() {
    if (--running_ == 0 && !later_.empty()) SubmitNext();
  }

 private:
  void SubmitNext() {
    const std::function<void()> submit = std::move(later_.begin()->second);
    later_.erase(later_.begin());
    submit();
  }
  std::multimap<int, std::function<void()>> later_;
  int tokens_ = 0;
  std::atomic<int> running_{0};
};

// Cancels itself after so many tokens.
class MixCollector : public Collector {
 public:
  MixCollector(Arrivals* arrivals, int cancel_after) {
    on_token = [this, arrivals, cancel_after](int tokens) {
      if (cancel_after > 0 && tokens >= cancel_after) {
        std::unique_lock lock(handle_mutex_);
        handle_set_.wait(lock, [&] { return handle_ != nullptr; });
        handle_->Cancel();
      }
      arrivals->Tick();
    };
  }
  void SetHandle(std::shared_ptr<RequestHandle> handle) {
    std::lock_guard lock(handle_mutex_);
    handle_ = std::move(handle);
    handle_set_.notify_all();
  }
  void OnComplete(Completion completion) override {
    at_end();  // first: whoever waits for the end may go then
    Collector::OnComplete(std::move(completion));
  }
  void OnError(absl::Status status) override {
    at_end();
    Collector::OnError(std::move(status));
  }
  std::function<void()> at_end = [] {};

 private:
  std::mutex handle_mutex_;
  std::condition_variable handle_set_;
  std::shared_ptr<RequestHandle> handle_;
};

struct BatchSizes : EngineObserver {
  void OnStep(const StepRecord& step) override {
    if (step.decode_rows == 0) return;
    std::lock_guard lock(mutex);
    sizes.push_back(step.decode_rows);
  }
  std::vector<int> Take() {
    std::lock_guard lock(mutex);
    return std::exchange(sizes, {});
  }
  std::mutex mutex;
  std::vector<int> sizes;
};

class MixEngine {
 public:
  MixEngine(ComputeType compute, int threads, EngineObserver* observer) : pool_(threads) {
    EngineOptions options;
    options.kv_memory_bytes = size_t{24} << 20;
    options.context_memory_bytes = size_t{4} << 20;
    options.check_invariants = true;
    auto decoder = *Decoder::Create(TinyModel::Get().weights, compute, &pool_);
    auto plan = Storing(*TinyBytePlan(), decoder->kv_type());
    auto engine = Engine::Create(options, std::move(decoder), TinyModel::Get().tokenizer,
                                 std::move(plan), observer);
    EXPECT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }

  // All of it at once, arrivals as they are told; or one after another.
  std::vector<Outcome> Run(const Mix& mix, bool alone) {
    std::vector<std::string> ids;
    for (const ContextRequest& context : mix.contexts) {
      auto answer = std::make_shared<ContextAnswer>();
      EXPECT_TRUE(engine_->Submit(context, answer).ok());
      const auto& made = answer->Wait();
      EXPECT_TRUE(made.ok()) << made.status();
      ids.push_back(made->id);
    }
    Arrivals arrivals;
    Gate all_there;  // holds the engine until the first ones have been submitted
    if (alone) all_there.Open();
    std::vector<std::shared_ptr<MixCollector>> collectors(mix.items.size());
    std::vector<std::shared_ptr<ScoreAnswer>> answers(mix.items.size());
    const auto submit = [&](size_t i) {
      const Item& item = mix.items[i];
      std::shared_ptr<const ContextLease> lease;
      if (item.context >= 0) {
        auto used =
            engine_->contexts().Use("me", ids[static_cast<size_t>(item.context)], Clock::now());
        EXPECT_TRUE(used.ok()) << used.status();
        lease = std::make_shared<const ContextLease>(*std::move(used));
      }
      arrivals.Submitted();
      if (item.scores()) {
        ScoreRequest request = item.score;
        request.context = std::move(lease);
        EXPECT_TRUE(engine_->Submit(std::move(request), answers[i]).ok());
      } else {
        GenerateRequest request = item.generate;
        request.context = std::move(lease);
        auto handle = engine_->Submit(std::move(request), collectors[i]);
        EXPECT_TRUE(handle.ok()) << handle.status();
        collectors[i]->SetHandle(*handle);
      }
    };
    for (size_t i = 0; i < mix.items.size(); ++i) {
      const Item& item = mix.items[i];
      if (item.scores()) {
        answers[i] = std::make_shared<ScoreAnswer>();
        answers[i]->on_start = [&] { all_there.Wait(); };
        answers[i]->at_end = [&] { arrivals.End(); };
      } else {
        collectors[i] = std::make_shared<MixCollector>(&arrivals, alone ? 0 : item.cancel_after);
        collectors[i]->at_end = [&] { arrivals.End(); };
        collectors[i]->on_start = [&] { all_there.Wait(); };
      }
      if (!alone && item.arrival > 0) {
        arrivals.Add(item.arrival, [&, i] { submit(i); });
      }
    }
    for (size_t i = 0; i < mix.items.size(); ++i) {
      if (!alone && mix.items[i].arrival > 0) continue;
      submit(i);
      if (!alone) continue;
      if (answers[i] != nullptr) answers[i]->Wait();
      if (collectors[i] != nullptr) collectors[i]->Wait();
    }
    all_there.Open();
    std::vector<Outcome> outcomes(mix.items.size());
    for (size_t i = 0; i < mix.items.size(); ++i) {
      Outcome& outcome = outcomes[i];
      if (answers[i] != nullptr) {
        const auto& result = answers[i]->Wait();
        outcome.status = result.status();
        if (result.ok()) outcome.scores = result->continuations;
      } else {
        const Collector& c = collectors[i]->Wait();
        outcome.status = c.status();
        outcome.tokens = c.tokens();
        outcome.logprobs = c.logprobs();
        outcome.text = c.text();
        outcome.kl = {c.completion().next_token_kl, c.completion().next_token_kl_floor};
        outcome.compactions = c.completion().compactions;
      }
    }
    for (const std::string& id : ids) EXPECT_TRUE(engine_->contexts().Delete("me", id).ok());
    return outcomes;
  }

  void ExpectAllFree() {
    engine_->Shutdown();
    const EngineStats stats = engine_->stats();
    EXPECT_EQ(stats.kv_used_bytes + stats.kv_reserved_bytes, 0u);
    EXPECT_EQ(stats.work_reserved_bytes, 0u);
    for (const LayerStats& layer : stats.layers)
      EXPECT_EQ(layer.used_bytes + layer.reserved_bytes, 0u);
  }

 private:
  ThreadPool pool_;
  std::unique_ptr<Engine> engine_;
};

void ExpectSame(const Outcome& alone, const Outcome& mixed, bool cancelled) {
  ASSERT_TRUE(alone.status.ok()) << alone.status;
  if (cancelled && !mixed.status.ok()) {
    EXPECT_EQ(mixed.status.code(), absl::StatusCode::kCancelled);
    ASSERT_LE(mixed.tokens.size(), alone.tokens.size());
  } else {
    ASSERT_TRUE(mixed.status.ok()) << mixed.status;
    ASSERT_EQ(mixed.tokens.size(), alone.tokens.size());
    EXPECT_EQ(mixed.text, alone.text);
    EXPECT_EQ(mixed.kl, alone.kl);
    EXPECT_EQ(mixed.compactions, alone.compactions);
  }
  for (size_t i = 0; i < mixed.tokens.size(); ++i) {
    ASSERT_EQ(mixed.tokens[i], alone.tokens[i]) << "token " << i;
    ASSERT_EQ(mixed.logprobs[i].logprob, alone.logprobs[i].logprob) << "token " << i;
    ASSERT_EQ(mixed.logprobs[i].top, alone.logprobs[i].top) << "token " << i;
  }
  ASSERT_EQ(mixed.scores.size(), alone.scores.size());
  for (size_t i = 0; i < mixed.scores.size(); ++i) {
    EXPECT_EQ(mixed.scores[i].logprob, alone.scores[i].logprob);
    EXPECT_EQ(mixed.scores[i].greedy, alone.scores[i].greedy);
  }
}

using ShortPromptTest = TinyEngineTest;

// Its 2 * kLayers slices are nothing beside a step that takes long.
TEST_F(ShortPromptTest, SharesAStepBetweenItsSlices) {
  EngineOptions options;
  options.before_decode_layer = [](int layer) {
    if (layer == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  };
  StartTiny(options);
  std::atomic<int> steps{0};
  Gate decoding;
  auto running = std::make_shared<Collector>();
  running->on_token = [&](int tokens) {
    steps = tokens;
    if (tokens == 2) decoding.Open();
  };
  Submit(TinyAsk(TinyTokens(40, 1), 24), running);
  decoding.Wait();
  auto late = std::make_shared<Collector>();
  int steps_before = 0, steps_at_first = 0;
  late->on_start = [&] { steps_before = steps; };
  late->on_token = [&](int tokens) {
    if (tokens == 1) steps_at_first = steps;
  };
  Submit(TinyAsk(TinyTokens(8, 2), 2), late);
  EXPECT_TRUE(late->Wait().status().ok());
  EXPECT_TRUE(running->Wait().status().ok());
  EXPECT_GT(steps_before, 0);
  EXPECT_LT(steps_at_first - steps_before, 2 * TinyModel::kLayers);
}

class BatchingTest : public ::testing::TestWithParam<std::pair<ComputeType, int>> {};

TEST_P(BatchingTest, OutputsAreTheSameBitsInAnyCompany) {
  const auto [compute, threads] = GetParam();
  const char* asked = std::getenv("RIPPLEKV_MIXES");
  const int mixes = (asked == nullptr ? 200 : std::atoi(asked)) / 4;
  BatchSizes sizes;
  MixEngine together(compute, threads, &sizes);
  MixEngine alone(compute, /*threads=*/1, nullptr);
  int64_t compactions = 0;
  int cancelled = 0, scored = 0, over_contexts = 0;
  for (int m = 0; m < mixes; ++m) {
    const uint64_t seed = static_cast<uint64_t>(m) * 4 + (compute == ComputeType::kF32 ? 0 : 2) +
                          static_cast<uint64_t>(threads);
    SCOPED_TRACE("mix " + std::to_string(seed));
    const Mix mix = RandomMix(seed);
    const std::vector<Outcome> expected = alone.Run(mix, /*alone=*/true);
    sizes.Take();
    const std::vector<Outcome> got = together.Run(mix, /*alone=*/false);
    std::vector<int> batch = sizes.Take();
    ASSERT_FALSE(batch.empty());
    std::nth_element(batch.begin(), batch.begin() + static_cast<std::ptrdiff_t>(batch.size() / 2),
                     batch.end());
    EXPECT_GE(batch[batch.size() / 2], 4) << "median decode batch";
    for (size_t i = 0; i < mix.items.size(); ++i) {
      SCOPED_TRACE("request " + std::to_string(i) + ": " + Describe(mix, mix.items[i]));
      ExpectSame(expected[i], got[i], mix.items[i].cancel_after > 0);
      compactions += got[i].compactions;
      cancelled += got[i].status.ok() ? 0 : 1;
      scored += mix.items[i].scores() ? 1 : 0;
      over_contexts += mix.items[i].context >= 0 ? 1 : 0;
    }
    if (HasFatalFailure() || HasNonfatalFailure()) break;
  }
  together.ExpectAllFree();
  alone.ExpectAllFree();
  // The mixes hold what they are made for.
  EXPECT_GT(compactions, mixes);
  EXPECT_GT(cancelled, mixes / 10);
  EXPECT_GT(scored, mixes / 4);
  EXPECT_GT(over_contexts, mixes);
}

INSTANTIATE_TEST_SUITE_P(
    All, BatchingTest,
    ::testing::Values(std::pair{ComputeType::kF32, 1}, std::pair{ComputeType::kF32, 2},
                      std::pair{ComputeType::kBf16, 1}, std::pair{ComputeType::kBf16, 2}),
    [](const auto& info) {
      return std::string(info.param.first == ComputeType::kF32 ? "Fp32" : "Bf16") + "Threads" +
             std::to_string(info.param.second);
    });

}  // namespace
}  // namespace ripplekv
