// Bounded decode growth: what a layer may take, when it is compacted, what stays, and an output
// that is the unbounded one's until then.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "server/engine/decode_step.h"
#include "server/engine/prefill.h"
#include "server/engine/sampler.h"
#include "tests/server/engine/tiny_requests.h"

namespace ripplekv {
namespace {

constexpr int kOutput = 300;

// A layer's rows by the definition: so many after the prompt, compacted back to `target` whenever
// they have reached the capacity, before the next one is added.
struct LayerGrowth {
  int64_t rows = 0;
  int64_t target = 0;
  int64_t capacity = 0;

  LayerGrowth(int64_t base, int64_t prompt, int64_t floor, int64_t cap)
      : rows(base + prompt),
        target(base + std::max(prompt, floor)),
        capacity(std::min(rows + kOutput, target + cap)) {}
  // Of an output of kOutput tokens; the last one's row is never added.
  int64_t Compactions() const {
    int64_t count = 0;
    int64_t now = rows;
    for (int step = 1; step < kOutput; ++step) {
      if (now == capacity) {
        now = target;
        ++count;
      }
      ++now;
    }
    return count;
  }
  int64_t StepsBefore() const { return capacity - rows; }
};

struct CompactionCounter : EngineObserver {
  void OnCompaction(int64_t layers) override { compactions += layers; }
  std::atomic<int64_t> compactions{0};
};

class GrowthTest : public TinyEngineTest {
 protected:
  std::shared_ptr<Collector> Run(GenerateRequest request) {
    auto sink = Submit(std::move(request));
    EXPECT_TRUE(sink->Wait().status().ok()) << sink->status();
    EXPECT_EQ(sink->tokens().size(), static_cast<size_t>(kOutput));
    return sink;
  }
  // The same, alone on the engine; every layer's bytes are watched at every token.
  std::shared_ptr<Collector> RunWatched(GenerateRequest request,
                                        const std::vector<int64_t>& capacity) {
    const KvPageLayout layout = engine_->kv_layout();
    auto sink = std::make_shared<Collector>();
    size_t most = 0;
    sink->on_token = [&](int tokens) {
      if (tokens < 3) return;  // the figures are those of the step before
      const EngineStats stats = engine_->stats();
      for (size_t l = 0; l < capacity.size(); ++l) {
        const LayerStats& layer = stats.layers[l];
        EXPECT_EQ(layer.used_bytes + layer.reserved_bytes,
                  static_cast<size_t>(layout.PagesFor(capacity[l])) * layout.page_bytes)
            << "layer " << l << " at token " << tokens;
        most = std::max(most, layer.used_bytes);
      }
    };
    Submit(std::move(request), sink);
    EXPECT_TRUE(sink->Wait().status().ok()) << sink->status();
    EXPECT_GT(most, 0u);
    return sink;
  }
};

std::vector<LayerGrowth> Growths(const LayerBudgets& budgets, const Plan& plan, int64_t cap) {
  std::vector<LayerGrowth> growths;
  for (int64_t rows : budgets.layer) growths.emplace_back(0, rows, plan.floor(), cap);
  return growths;
}

TEST_F(GrowthTest, RowsStayWithinTheCapAndCompactionsAreCounted) {
  CompactionCounter counter;
  StartTiny({}, 1, &counter);
  const auto plan = TinyPlan();
  int64_t expected_total = 0;
  for (size_t length : {1u, 5u, 100u, 400u}) {
    for (int32_t cap : {16, 20, 64, 290}) {
      SCOPED_TRACE(std::to_string(length) + " tokens, cap " + std::to_string(cap));
      GenerateRequest request = TinyAsk(TinyTokens(length, length), kOutput);
      request.kv.growth_cap = cap;
      int64_t expected = 0;
      std::vector<int64_t> capacity;
      for (const LayerGrowth& layer :
           Growths(*plan->BudgetsFor(static_cast<int64_t>(length)), *plan, cap)) {
        EXPECT_LE(layer.capacity, layer.target + cap);
        capacity.push_back(layer.capacity);
        expected += layer.Compactions();
      }
      EXPECT_EQ(expected == 0, length == 1 && cap == 290) << "the floor leaves room for all of it";
      const auto bounded = RunWatched(request, capacity);
      EXPECT_EQ(bounded->completion().compactions, expected);
      expected_total += expected;
      if (HasFailure()) break;
    }
  }
  ASSERT_TRUE(engine_->Drain(Clock::now() + seconds(60)).ok());
  engine_->Shutdown();  // the observer goes before the engine
  EXPECT_EQ(counter.compactions, expected_total);
  ExpectAllFree();
}

TEST_F(GrowthTest, TheOutputIsTheUnboundedOneUntilTheFirstCompaction) {
  StartTiny();
  const auto plan = TinyPlan();
  for (const auto& [length, cap] : {std::pair{200u, 16}, {200u, 50}, {4u, 30}, {350u, 100}}) {
    SCOPED_TRACE(std::to_string(length) + " tokens, cap " + std::to_string(cap));
    GenerateRequest request = TinyAsk(TinyTokens(length, 7 * length), kOutput);
    const auto unbounded = Run(request);
    EXPECT_EQ(unbounded->completion().compactions, 0);
    request.kv.growth_cap = cap;
    const auto bounded = Run(request);
    EXPECT_GT(bounded->completion().compactions, 0);
    int64_t first = std::numeric_limits<int64_t>::max();
    for (const LayerGrowth& layer : Growths(*plan->BudgetsFor(length), *plan, cap)) {
      first = std::min(first, layer.StepsBefore());
    }
    // Token 0 comes from the prompt, token i from the i-th step, which adds the i-th row.
    ASSERT_LT(first + 1, kOutput);
    for (int64_t i = 0; i <= first; ++i) {
      const auto at = static_cast<size_t>(i);
      ASSERT_EQ(bounded->tokens()[at], unbounded->tokens()[at]) << "token " << i;
      ASSERT_EQ(bounded->logprobs()[at].logprob, unbounded->logprobs()[at].logprob);
      ASSERT_EQ(bounded->logprobs()[at].top, unbounded->logprobs()[at].top);
    }
    const auto next = static_cast<size_t>(first) + 1;
    EXPECT_NE(bounded->logprobs()[next].top, unbounded->logprobs()[next].top)
        << "a row is gone at token " << next;
    ExpectSameOutput(*bounded, *Run(request));
  }
}

TEST_F(GrowthTest, TheServersCapIsForRequestsThatDoNotSay) {
  EngineOptions options;
  options.growth_cap = 24;
  StartTiny(options);
  const GenerateRequest silent = TinyAsk(TinyTokens(150, 1), kOutput);
  GenerateRequest same = silent, larger = silent, unbounded = silent;
  same.kv.growth_cap = 24;
  larger.kv.growth_cap = 60;
  unbounded.kv.growth_cap = 0;
  const auto by_default = Run(silent);
  ExpectSameOutput(*by_default, *Run(same));
  EXPECT_GT(by_default->completion().compactions, Run(larger)->completion().compactions);
  EXPECT_EQ(Run(unbounded)->completion().compactions, 0);
}

// The engine's output repeated by hand, row by row, over a cache that can be looked into.
TEST_F(GrowthTest, SinksAndRecentRowsStay) {
  StartTiny();
  constexpr int kCap = 20;
  const auto plan = TinyPlan();
  const std::vector<int32_t> prompt = TinyTokens(260, 2);
  GenerateRequest request = TinyAsk(prompt, kOutput);
  request.kv.growth_cap = kCap;
  const auto expected = Run(request);

  ThreadPool pool(1);
  const auto decoder = *Decoder::Create(weights_, ComputeType::kF32, &pool);
  const ModelConfig& c = decoder->config();
  const KvPageLayout layout = engine_->kv_layout();
  const auto arena = *PageArena::Create({.total_bytes = size_t{8} << 20,
                                         .page_bytes = layout.page_bytes,
                                         .prefill_layer_bytes = size_t{1} << 20});
  std::vector<LayerPool> pools = MakeLayerPools(c.layers, arena.get());
  const LayerBudgets budgets = *plan->BudgetsFor(static_cast<int64_t>(prompt.size()));
  const std::vector<LayerGrowth> growths = Growths(budgets, *plan, kCap);
  std::vector<int64_t> capacity;
  for (const LayerGrowth& layer : growths) capacity.push_back(layer.capacity);
  auto cache = *SequenceCache::Reserve(absl::MakeSpan(pools), layout, capacity);
  Prefill prefill(decoder.get(), arena.get(), &cache,
                  {.tokens = prompt,
                   .budgets = &budgets,
                   .selector = plan->selector(),
                   .sinks = plan->sinks()});
  while (!prefill.done()) ASSERT_TRUE(prefill.Step().ok());
  std::vector<float> logits(static_cast<size_t>(c.vocab));
  prefill.LastLogits(logits.data());
  cache.TrackMass();
  DecodeStep decode(decoder.get());
  const int sinks = plan->sinks();
  const int recent = SelectorWindow(plan->selector());
  ASSERT_EQ(sinks, 2);
  ASSERT_EQ(recent, 8);
  int64_t compactions = 0;
  int heads_that_differ = 0;
  for (int i = 0; i < kOutput; ++i) {
    const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
    ASSERT_EQ(expected->tokens()[static_cast<size_t>(i)], best) << "token " << i;
    ASSERT_EQ(expected->logprobs()[static_cast<size_t>(i)].logprob,
              Logprobs(logits, static_cast<int32_t>(best), 0).logprob);
    if (i + 1 == kOutput) break;
    const int32_t position = static_cast<int32_t>(prompt.size()) + i;
    for (int l = 0; l < c.layers; ++l) {
      const LayerGrowth& growth = growths[static_cast<size_t>(l)];
      ASSERT_LE(cache.rows(l), growth.capacity);
      if (cache.rows(l) < growth.capacity) continue;
      ++compactions;
      ASSERT_TRUE(cache.CompactBack(l, growth.target, sinks, recent).ok());
      ASSERT_EQ(cache.rows(l), growth.target);
      std::vector<std::set<int32_t>> kept(static_cast<size_t>(c.kv_heads));
      for (int h = 0; h < c.kv_heads; ++h) {
        auto& positions = kept[static_cast<size_t>(h)];
        for (int64_t r = 0; r < cache.rows(l); ++r) positions.insert(cache.RowPosition(l, h, r));
        EXPECT_EQ(positions.size(), static_cast<size_t>(growth.target));
        for (int32_t p = 0; p < sinks; ++p) EXPECT_EQ(positions.count(p), 1u) << "sink " << p;
        for (int32_t p = position - recent; p < position; ++p) {
          EXPECT_EQ(positions.count(p), 1u) << "position " << p << " before " << position;
        }
        EXPECT_LT(*positions.rbegin(), position);
      }
      heads_that_differ += kept[0] != kept[1];
    }
    const DecodeRow row = {
        .token = static_cast<int32_t>(best), .position = position, .cache = &cache};
    ASSERT_TRUE(decode.Run({&row, 1}, logits.data()).ok());
    cache.CommitStep();
  }
  EXPECT_EQ(compactions, expected->completion().compactions);
  EXPECT_GT(heads_that_differ, 0) << "every KV head keeps what it attends to";
}

TEST_F(GrowthTest, AContextsRowsStay) {
  StartTiny();
  const auto plan = TinyPlan();
  const auto made = CreateContext(TinyTokens(300, 3));
  ASSERT_TRUE(made.ok()) << made.status();
  const auto over = [&](size_t length, std::optional<int32_t> cap) {
    GenerateRequest request = TinyAsk(TinyTokens(length, 4), kOutput);
    request.context = Lease(made->id);
    request.kv.growth_cap = cap;
    return request;
  };
  const auto before = Run(over(10, std::nullopt));
  for (size_t length : {1u, 10u, 60u}) {
    for (int32_t cap : {16, 40}) {
      SCOPED_TRACE(std::to_string(length) + " tokens, cap " + std::to_string(cap));
      int64_t expected = 0;
      std::vector<int64_t> capacity;
      for (const LayerUsage& layer : made->layers) {
        const LayerGrowth growth(layer.positions, static_cast<int64_t>(length), plan->floor(), cap);
        expected += growth.Compactions();
        // The context's own last page is there as well as the copy of it.
        const int64_t page = engine_->kv_layout().rows_per_page;
        const int64_t copied = layer.positions % page == 0 ? 0 : page;
        capacity.push_back(growth.capacity + copied);
      }
      const auto bounded = RunWatched(over(length, cap), capacity);
      EXPECT_GT(expected, 0);
      EXPECT_EQ(bounded->completion().compactions, expected);
    }
  }
  ExpectSameOutput(*before, *Run(over(10, std::nullopt)));
}

TEST_F(GrowthTest, CapsOutOfRangeAreRefused) {
  StartTiny();
  for (int32_t cap : {-1, 1, 15, (1 << 20) + 1}) {
    GenerateRequest request = TinyAsk({1, 2}, 3);
    request.kv.growth_cap = cap;
    const auto refused = engine_->Submit(request, std::make_shared<Collector>());
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument) << cap;
    EXPECT_THAT(std::string(refused.status().message()),
                ::testing::StartsWith("kv.growth_cap is " + std::to_string(cap)));
  }
}

}  // namespace
}  // namespace ripplekv
