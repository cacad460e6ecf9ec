#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "tests/model/tiny_llama.h"
#include "tests/server/engine/engine_fixture.h"

namespace ripplekv {

// A model of random weights, small enough for thousands of requests: 4 layers, 4 query and 2 KV
// heads of 16, vocabulary 260, context 1024.
struct TinyModel {
  static constexpr int kLayers = 4;
  static constexpr int kContext = 1024;

  std::vector<std::byte> bytes;
  std::shared_ptr<const Weights> weights;
  std::shared_ptr<const Tokenizer> tokenizer;

  static const TinyModel& Get() {
    static const TinyModel* model = [] {
      auto* m = new TinyModel;
      m->bytes = TinyLlama({.layers = kLayers, .context_length = kContext}).Build();
      const GgufFile file = *GgufFile::Parse(m->bytes);
      m->weights = *Weights::Load(file, *ModelConfig::FromGguf(file));
      m->tokenizer = *Tokenizer::FromGguf(file);
      return m;
    }();
    return *model;
  }
};

inline std::shared_ptr<const Plan> TinyPlan(const Size& size = Retention{0.3},
                                            int64_t min_positions = 16) {
  PlanSpec spec;
  spec.layers = TinyModel::kLayers;
  spec.size = size;
  spec.min_positions = min_positions;
  spec.allocator = RippleAllocator{.r = 4};
  spec.sensitivity = {0.1, 0.4, 0.02, 0.3};
  spec.selector = SnapKv{.window = 8, .kernel = 5, .pooling = Pooling::kMax};
  spec.sinks = 2;
  return std::make_shared<const Plan>(*Plan::Make(spec));
}

// One budget of bytes buys rows and types: few fine rows here, many coarse ones there.
inline std::shared_ptr<const Plan> TinyBytePlan(const Size& size = Retention{0.3}) {
  PlanSpec spec = TinyPlan(size)->spec();
  spec.allocator = DamageCurvesAllocator{};
  spec.choose_types = true;
  spec.kv_types = KvType::kF32;
  spec.kv_shape = {.kv_heads = 2, .head_dim = 16};
  spec.damage = {
      .prompt_tokens = 256,
      .retentions = {0.1, 0.3, 0.6},
      .rows = {{1, 0.4, 0.1}, {2, 1, 0.3}, {0.2, 0.05, 0.01}, {0.8, 0.5, 0.2}},
      .types = {KvType::kBf16, KvType::kInt8, {KvType::kInt8, KvType::kInt4}},
      .storage = {
          {0.001, 0.002, 0.01}, {0.001, 3, 4}, {0.0001, 0.0002, 0.0003}, {0.001, 0.002, 0.9}}};
  return std::make_shared<const Plan>(*Plan::Make(std::move(spec)));
}

class TinyEngineTest : public EngineTest {
 protected:
  void SetUp() override {
    weights_ = TinyModel::Get().weights;
    tokenizer_ = TinyModel::Get().tokenizer;
  }
  void StartTiny(EngineOptions options = {}, int threads = 1, EngineObserver* observer = nullptr,
                 std::shared_ptr<const Plan> plan = TinyPlan()) {
    if (options.kv_memory_bytes == EngineOptions().kv_memory_bytes) {
      options.kv_memory_bytes = size_t{16} << 20;
      options.context_memory_bytes = size_t{4} << 20;
    }
    Start(options, std::move(plan), threads, observer);
  }
};

}  // namespace ripplekv
