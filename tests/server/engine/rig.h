#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "calibration/policy/plan.h"
#include "server/engine/prefill.h"
#include "tests/server/engine/test_model.h"

namespace ripplekv {

// Prefill and decode over real weights, driven by hand.
class Rig {
 public:
  Rig(ComputeType compute, int threads, int64_t longest) : pool_(threads) {
    decoder = *Decoder::Create(TestWeights(), compute, &pool_);
    const ModelConfig& c = decoder->config();
    const KvType type = decoder->kv_type();
    layout = KvPageLayout::For(type, c.kv_heads, c.head_dim,
                               KvPageLayout::BytesForRowsPerPage(type, c.kv_heads, c.head_dim, 32));
    const size_t full =
        static_cast<size_t>(longest * 2 * c.kv_heads * c.head_dim) * KvTypeBytes(type);
    arena = *PageArena::Create({.total_bytes = size_t{512} << 20,
                                .page_bytes = layout.page_bytes,
                                .prefill_layer_bytes = full});
    pools = MakeLayerPools(c.layers, arena.get());
  }

  // types: what each layer stores; empty: what the model computes in.
  std::unique_ptr<SequenceCache> Prefilled(const std::vector<int32_t>& prompt, const Size& size,
                                           int64_t growth, std::vector<float>& logits,
                                           const std::vector<KvTypes>& types = {}) {
    PlanSpec spec;
    spec.layers = decoder->config().layers;
    spec.size = size;
    spec.min_positions = 0;
    const Plan plan = *Plan::Make(spec);
    budgets = *plan.BudgetsFor(static_cast<int64_t>(prompt.size()));
    std::vector<int64_t> capacity;
    for (int64_t rows : budgets.layer) capacity.push_back(rows + growth);
    std::vector<KvPageLayout> layouts(pools.size(), layout);
    for (size_t l = 0; l < types.size(); ++l) layouts[l] = layout.With(types[l]);
    auto cache = std::make_unique<SequenceCache>(
        *SequenceCache::Reserve(absl::MakeSpan(pools), layouts, capacity));
    arena->ResetPeak();
    Prefill prefill(decoder.get(), arena.get(), cache.get(),
                    {.tokens = prompt,
                     .budgets = &budgets,
                     .selector = plan.selector(),
                     .sinks = plan.sinks()});
    while (!prefill.done()) {
      const absl::Status status = prefill.Step();
      EXPECT_TRUE(status.ok()) << status;
      if (!status.ok()) break;
    }
    logits.resize(static_cast<size_t>(decoder->config().vocab));
    prefill.LastLogits(logits.data());
    return cache;
  }

 private:
  ThreadPool pool_;

 public:
  std::unique_ptr<Decoder> decoder;
  KvPageLayout layout;
  std::unique_ptr<PageArena> arena;
  std::vector<LayerPool> pools;
  LayerBudgets budgets;
};

inline std::vector<int32_t> RandomPrompt(size_t tokens, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> prompt(tokens);
  for (int32_t& id : prompt) id = static_cast<int32_t>(100 + random() % 40000);
  return prompt;
}

inline void ExpectSameBits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
}

}  // namespace ripplekv
