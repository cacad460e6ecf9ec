// Stored KV types: what the engine promises holds within every type, figures are those of the type,
// and what attention reads is what was stored.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "server/engine/generate_task.h"
#include "server/engine/prefill.h"
#include "tests/server/engine/tiny_requests.h"

namespace ripplekv {
namespace {

constexpr KvTypes kStored[] = {KvType::kBf16, KvType::kInt8, KvType::kInt4,
                               KvTypes(KvType::kInt8, KvType::kInt4),
                               KvTypes(KvType::kF32, KvType::kInt8)};

std::string Name(KvTypes types) {
  return std::string(KvTypeName(types.k)) + ":" + KvTypeName(types.v);
}

class KvTypeTest : public TinyEngineTest {
 protected:
  void StartWith(std::optional<KvTypes> types) {
    kv_types_ = types;
    StartTiny();
  }
  std::shared_ptr<Collector> Run(GenerateRequest request) {
    auto sink = Submit(std::move(request));
    EXPECT_TRUE(sink->Wait().status().ok()) << sink->status();
    return sink;
  }
  // Each request gives the same output alone and beside the others.
  void ExpectSameInCompany(const std::vector<GenerateRequest>& requests) {
    std::vector<std::shared_ptr<Collector>> alone, together;
    for (const GenerateRequest& request : requests) alone.push_back(Run(request));
    for (const GenerateRequest& request : requests) together.push_back(Submit(request));
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE("request " + std::to_string(i));
      ASSERT_TRUE(together[i]->Wait().status().ok()) << together[i]->status();
      ExpectSameOutput(*alone[i], *together[i]);
    }
  }
};

GenerateRequest WithSize(GenerateRequest request, const Size& size) {
  request.kv.size = size;
  return request;
}

TEST_F(KvTypeTest, ABatchGivesEachRequestItsOwnBits) {
  for (KvTypes types : kStored) {
    for (ComputeType compute : {ComputeType::kF32, ComputeType::kBf16}) {
      SCOPED_TRACE(Name(types));
      compute_ = compute;
      StartWith(types);
      const auto context = CreateContext(TinyTokens(300, 1));
      ASSERT_TRUE(context.ok()) << context.status();
      std::vector<GenerateRequest> requests;
      for (uint64_t i = 0; i < 6; ++i) {
        GenerateRequest request =
            Sampled(TinyAsk(TinyTokens(1 + 60 * i, 10 + i), 60 + static_cast<int>(i)), i);
        if (i % 2 == 1) request.kv.growth_cap = 16 + static_cast<int>(i);
        if (i >= 4) request.context = Lease(context->id);
        requests.push_back(request);
      }
      ASSERT_NO_FATAL_FAILURE(ExpectSameInCompany(requests));
    }
  }
}

TEST_F(KvTypeTest, APromptWithinItsBudgetIsTheFullCache) {
  for (KvTypes types : kStored) {
    SCOPED_TRACE(Name(types));
    StartWith(types);
    const GenerateRequest request = Sampled(TinyAsk(TinyTokens(90, 4), 40), 5);
    const auto full = Run(WithSize(request, Full{}));
    ExpectSameOutput(*full, *Run(WithSize(request, Retention{1})));
    ExpectSameOutput(*full, *Run(WithSize(request, TotalPositions{TinyModel::kLayers * 90})));
  }
}

// Of a server whose plan lists the positions.
TEST_F(KvTypeTest, ASizeBesidePositionsIsRefused) {
  PlanSpec spec = TinyPlan()->spec();
  spec.allocator = PositionsAllocator{{40, 50, 60, 70}};
  StartTiny({}, 1, nullptr, std::make_shared<const Plan>(*Plan::Make(spec)));
  const GenerateRequest request = TinyAsk(TinyTokens(100, 1), 2);
  const auto refused =
      engine_->Submit(WithSize(request, Retention{0.5}), std::make_shared<Collector>());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.status().message(),
            "kv.size is given beside the positions allocator: must be absent, since the positions "
            "are the size");
  Run(request);
  GenerateRequest uniform = WithSize(request, Retention{0.5});
  uniform.kv.allocator = UniformAllocator{};
  Run(uniform);
}

// A request that keeps all rows reserves nothing for choosing some.
TEST_F(KvTypeTest, WhereNothingIsChosenTheSelectorTakesNoMemory) {
  const ModelConfig& config = TinyModel::Get().weights->config();
  const GenerateRequest request = TinyAsk(TinyTokens(600, 1), 2);
  EngineOptions options;
  options.work_memory_bytes =
      GenerateTask::WorkBytes(config, 0) + Prefill::WorkBytes(config, KvType::kF32, 600);
  StartTiny(options);
  Run(WithSize(request, Full{}));
  const auto refused =
      engine_->Submit(WithSize(request, Retention{0.5}), std::make_shared<Collector>());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(KvTypeTest, QuotasFollowThePlan) {
  StartTiny({}, 1, nullptr, TinyPlan(Retention{0.3}, 0));
  ASSERT_TRUE(Eventually([&] { return engine_->stats().layers[0].quota_bytes > 0; }));
  const EngineStats stats = engine_->stats();
  std::vector<double> quotas;
  for (const LayerStats& layer : stats.layers) {
    quotas.push_back(static_cast<double>(layer.quota_bytes));
  }
  // r 4 of sensitivities 0.1, 0.4, 0.02, 0.3.
  EXPECT_NEAR(quotas[1] / quotas[2], 4, 0.1);
  EXPECT_NEAR(quotas[3] / quotas[2], std::pow(4, 0.28 / 0.38), 0.1);
}

TEST_F(KvTypeTest, FiguresAreThoseOfTheType) {
  for (KvTypes types : kStored) {
    SCOPED_TRACE(Name(types));
    StartWith(types);
    // Heads of 16 channels take a whole group of 32 where they are quantised.
    const auto row = [](KvType type) -> size_t {
      return type == KvType::kF32    ? 64
             : type == KvType::kBf16 ? 32
             : type == KvType::kInt8 ? 32 + 4
                                     : 16 + 4;
    };
    const size_t row_bytes = 2 * (row(types.k) + row(types.v) + 4);
    const KvPageLayout layout = engine_->kv_layout();
    EXPECT_EQ(layout.rows_per_page, Engine::kRowsPerPage);
    EXPECT_EQ(layout.RowBytes(), row_bytes);
    EXPECT_GE(layout.page_bytes, 32 * row_bytes);
    EXPECT_LT(layout.page_bytes, 32 * row_bytes + 6 * 64);
    const auto answer = Run(WithSize(TinyAsk(TinyTokens(100, 6), 2), Full{}));
    const CacheUsage& usage = answer->completion().cache;
    EXPECT_EQ(usage.kept_bytes, 100 * row_bytes * TinyModel::kLayers);
    EXPECT_EQ(usage.full_bytes, usage.kept_bytes);
    for (const LayerUsage& layer : usage.layers) {
      EXPECT_EQ(layer.bytes, 4 * layout.page_bytes);  // of 32 rows
    }
  }
}

GenerateRequest WithTypes(GenerateRequest request, KvTypes types) {
  request.kv.key_type = types.k;
  request.kv.value_type = types.v;
  return request;
}

// A request's own types give what a server of those types gives, whose pages hold other numbers of
// rows.
TEST_F(KvTypeTest, ARequestsTypesGiveTheBitsOfAServerOfTheType) {
  std::vector<GenerateRequest> requests;
  for (uint64_t i = 0; i < 4; ++i) {
    requests.push_back(Sampled(TinyAsk(TinyTokens(20 + 130 * i, 30 + i), 60), i));
  }
  requests[1].kv.growth_cap = 20;
  for (ComputeType compute : {ComputeType::kF32, ComputeType::kBf16}) {
    compute_ = compute;
    std::vector<std::vector<std::shared_ptr<Collector>>> expected;
    for (KvTypes types : kStored) {
      StartWith(types);
      for (auto& outputs = expected.emplace_back(); const GenerateRequest& request : requests) {
        outputs.push_back(Run(request));
      }
    }
    for (std::optional<KvTypes> server :
         {std::optional<KvTypes>(), std::optional<KvTypes>(KvType::kInt4)}) {
      StartWith(server);
      for (size_t t = 0; t < std::size(kStored); ++t) {
        SCOPED_TRACE(Name(kStored[t]));
        for (size_t i = 0; i < requests.size(); ++i) {
          const auto got = Run(WithTypes(requests[i], kStored[t]));
          ExpectSameOutput(*expected[t][i], *got);
          EXPECT_EQ(got->completion().cache.kept_bytes,
                    expected[t][i]->completion().cache.kept_bytes);
          EXPECT_EQ(got->completion().compactions, expected[t][i]->completion().compactions);
        }
      }
    }
  }
}

TEST_F(KvTypeTest, RequestsOfManyTypesShareABatchAndKeepTheirBits) {
  for (int threads : {1, 2}) {
    StartTiny({}, threads);
    std::vector<GenerateRequest> requests;
    for (size_t i = 0; i < 12; ++i) {
      GenerateRequest request = WithTypes(Sampled(TinyAsk(TinyTokens(5 + 29 * i, 50 + i), 70), i),
                                          kStored[i % std::size(kStored)]);
      if (i % 3 == 1) request.kv.growth_cap = 16 + static_cast<int>(i);
      if (i % 4 == 3) {
        KvParams kv = request.kv;
        kv.growth_cap.reset();
        const auto context = CreateContext(TinyTokens(90 + 31 * i, i), "anonymous", kv);
        ASSERT_TRUE(context.ok()) << context.status();
        request.kv.key_type.reset();
        request.kv.value_type.reset();
        request.context = Lease(context->id);
      }
      requests.push_back(request);
    }
    ASSERT_NO_FATAL_FAILURE(ExpectSameInCompany(requests));
  }
}

TEST_F(KvTypeTest, LayersStoreWhatThePlanChose) {
  const auto plan = TinyBytePlan();
  StartTiny({}, 1, nullptr, plan);
  for (size_t tokens : {150u, 400u}) {
    const LayerBudgets budgets = *plan->BudgetsFor(static_cast<int64_t>(tokens));
    std::vector<KvTypes> distinct;
    size_t bytes = 0;
    for (size_t l = 0; l < budgets.types.size(); ++l) {
      const KvTypes types = budgets.types[l];
      if (std::find(distinct.begin(), distinct.end(), types) == distinct.end()) {
        distinct.push_back(types);
      }
      bytes += static_cast<size_t>(budgets.layer[l]) * KvPageLayout::RowBytes(types, 2, 16);
    }
    EXPECT_GE(distinct.size(), 2u) << "layers of different types";
    GenerateRequest request = Sampled(TinyAsk(TinyTokens(tokens, 70), 60), 1);
    request.kv.growth_cap = 20;
    const auto answer = Run(request);
    const CacheUsage& usage = answer->completion().cache;
    ASSERT_EQ(usage.layers.size(), budgets.types.size());
    for (size_t l = 0; l < usage.layers.size(); ++l) {
      EXPECT_EQ(usage.layers[l].types, budgets.types[l]) << "layer " << l;
      EXPECT_EQ(usage.layers[l].positions, budgets.layer[l]) << "layer " << l;
      const int64_t rows = engine_->kv_layout().With(budgets.types[l]).rows_per_page;
      EXPECT_EQ(usage.layers[l].bytes, static_cast<size_t>((budgets.layer[l] + rows - 1) / rows) *
                                           engine_->kv_layout().page_bytes);
    }
    EXPECT_EQ(usage.kept_bytes, bytes);
    EXPECT_GT(answer->completion().compactions, 0);
    // A context of the plan keeps its layers' types for what comes after it.
    const auto context = CreateContext(TinyTokens(tokens, 70));
    ASSERT_TRUE(context.ok()) << context.status();
    ScoreRequest score;
    score.continuations = {TinyTokens(20, 71)};
    score.prompt = TinyTokens(9, 72);
    score.context = Lease(context->id);
    const auto over = Score(score);
    ASSERT_TRUE(over.ok()) << over.status();
    for (size_t l = 0; l < budgets.types.size(); ++l) {
      EXPECT_EQ(over->cache.layers[l].types, budgets.types[l]);
      EXPECT_EQ(over->cache.layers[l].positions, budgets.layer[l] + 9);
    }
    // A request's own types hold in every layer, and the size means positions again.
    const auto own = Run(WithTypes(TinyAsk(TinyTokens(tokens, 70), 2), KvType::kInt8));
    for (const LayerUsage& layer : own->completion().cache.layers) {
      EXPECT_EQ(layer.types, KvTypes(KvType::kInt8));
    }
  }
}

TEST_F(KvTypeTest, ARequestOverAContextStoresAsTheContextDoes) {
  StartTiny();
  KvParams kv;
  kv.key_type = KvType::kInt8;
  kv.value_type = KvType::kInt4;
  kv.size = Full{};
  const auto context = CreateContext(TinyTokens(100, 6), "anonymous", kv);
  ASSERT_TRUE(context.ok()) << context.status();
  const KvTypes types(KvType::kInt8, KvType::kInt4);
  const size_t row_bytes = 2 * ((32 + 4) + (16 + 4) + 4);
  EXPECT_EQ(context->kv_bytes, 100 * row_bytes * TinyModel::kLayers);
  // The full cache would be in the server's type.
  const size_t full_row_bytes = 2 * (64 + 64 + 4);
  EXPECT_EQ(context->full_kv_bytes, 100 * full_row_bytes * TinyModel::kLayers);
  for (const LayerUsage& layer : context->layers) EXPECT_EQ(layer.types, types);

  GenerateRequest request = TinyAsk(TinyTokens(30, 7), 5);
  request.context = Lease(context->id);
  const auto answer = Run(request);
  const CacheUsage& usage = answer->completion().cache;
  EXPECT_EQ(usage.kept_bytes, 130 * row_bytes * TinyModel::kLayers);
  EXPECT_EQ(usage.full_bytes, 130 * full_row_bytes * TinyModel::kLayers);
  const int rows_per_page = engine_->kv_layout().With(types).rows_per_page;
  EXPECT_GE(rows_per_page, 2 * Engine::kRowsPerPage);
  for (const LayerUsage& layer : usage.layers) {
    EXPECT_EQ(layer.types, types);
    EXPECT_EQ(layer.positions, 130);
    EXPECT_EQ(layer.bytes, (130 + rows_per_page - 1) / rows_per_page *
                               static_cast<size_t>(engine_->kv_layout().page_bytes));
  }
  for (auto set : {+[](KvParams& p) { p.key_type = KvType::kInt8; },
                   +[](KvParams& p) { p.value_type = KvType::kInt4; }}) {
    GenerateRequest wrong = request;
    set(wrong.kv);
    const auto refused = engine_->Submit(wrong, std::make_shared<Collector>());
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  }
}

// Rows that a context stored and rows that decoding adds are of the type: logprobs move by about
// its rounding, and no two types agree.
TEST_F(KvTypeTest, WhatIsReadWasRounded) {
  const auto logprobs = [&](std::optional<KvTypes> types) {
    StartWith(types);
    KvParams all;
    all.size = Full{};
    const auto context = CreateContext(TinyTokens(200, 7), "anonymous", all);
    EXPECT_TRUE(context.ok()) << context.status();
    ScoreRequest request;
    request.prompt = TinyTokens(20, 8);
    request.continuations = {TinyTokens(40, 9)};
    request.context = Lease(context->id);
    const auto scores = Score(std::move(request));
    EXPECT_TRUE(scores.ok()) << scores.status();
    double sum = 0;
    for (const TokenScore& token : scores->continuations[0].tokens) sum += token.logprob;
    return sum;
  };
  const double exact = logprobs(std::nullopt);
  EXPECT_EQ(logprobs(KvTypes(KvType::kF32)), exact);
  const double bf16 = std::abs(logprobs(KvType::kBf16) - exact);
  const double int8 = std::abs(logprobs(KvType::kInt8) - exact);
  const double int4 = std::abs(logprobs(KvType::kInt4) - exact);
  const double keys = std::abs(logprobs(KvTypes(KvType::kInt4, KvType::kF32)) - exact);
  const double values = std::abs(logprobs(KvTypes(KvType::kF32, KvType::kInt4)) - exact);
  for (double change : {bf16, int8, int4, keys, values}) EXPECT_GT(change, 1e-6);
  EXPECT_NE(keys, values);
  EXPECT_NE(int4, values);
  EXPECT_LT(int8, 0.01 * std::abs(exact));
  EXPECT_LT(int4, 0.2 * std::abs(exact));
}

}  // namespace
}  // namespace ripplekv
