#include "server/engine/prefill.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <vector>

#include "server/engine/decode_step.h"
#include "tests/server/engine/rig.h"

namespace ripplekv {
namespace {

// The arena's own count: the plan's pages plus one full layer, exactly, and the whole cache without
// compression.
TEST(PrefillTest, PeakIsThePlanPlusOneFullLayer) {
  if (TestWeights() == nullptr) return;
  constexpr int64_t kTokens = 4000;
  Rig rig(ComputeType::kBf16, 2, 8191);
  const ModelConfig& c = rig.decoder->config();
  std::vector<float> logits;
  auto cache = rig.Prefilled(RandomPrompt(kTokens, 3), Retention{0.1}, 256, logits);
  size_t plan_bytes = 0;
  for (int64_t rows : rig.budgets.layer) {
    EXPECT_EQ(rows, 400);
    plan_bytes += static_cast<size_t>((rows + 31) / 32) * rig.layout.page_bytes;
  }
  // One layer's keys and values in bf16.
  const size_t full_layer =
      static_cast<size_t>(kTokens) * 2 * static_cast<size_t>(c.kv_heads * c.head_dim) * 2;
  EXPECT_EQ(rig.arena->peak_bytes(), plan_bytes + full_layer);
  EXPECT_EQ(rig.arena->used_bytes(), plan_bytes);
  EXPECT_EQ(cache->bytes(), plan_bytes);
  std::printf(
      "peak of 4,000 tokens at 0.1: %zu bytes = plan %zu + full layer %zu; full cache rows %zu\n",
      rig.arena->peak_bytes(), plan_bytes, full_layer,
      static_cast<size_t>(kTokens) * rig.layout.RowBytes() * static_cast<size_t>(c.layers));
}

TEST(PrefillTest, RetentionOneAndShortPromptsEqualTheFullCacheBitForBit) {
  if (TestWeights() == nullptr) return;
  for (ComputeType compute : {ComputeType::kF32, ComputeType::kBf16}) {
    Rig rig(compute, 2, 300);
    for (size_t tokens : {size_t{20}, size_t{300}}) {
      // 20 tokens lie below the floor of 4 + 32 + 1, whatever the retention.
      const Size size = tokens == 20 ? Size(Retention{0.1}) : Size(Retention{1.0});
      std::vector<float> full_logits, logits;
      auto full = rig.Prefilled(RandomPrompt(tokens, 8), Full{}, 2, full_logits);
      auto cache = rig.Prefilled(RandomPrompt(tokens, 8), size, 2, logits);
      ExpectSameBits(full_logits, logits);
      DecodeStep decode(rig.decoder.get());
      for (int step = 0; step < 2; ++step) {
        DecodeRow row = {
            .token = 77, .position = static_cast<int32_t>(tokens) + step, .cache = full.get()};
        ASSERT_TRUE(decode.Run({&row, 1}, full_logits.data()).ok());
        row.cache = cache.get();
        ASSERT_TRUE(decode.Run({&row, 1}, logits.data()).ok());
        ExpectSameBits(full_logits, logits);
      }
      for (int l = 0; l < cache->layers(); ++l) {
        ASSERT_EQ(cache->rows(l), full->rows(l));
        for (int64_t r = 0; r < cache->rows(l); ++r) ASSERT_EQ(cache->RowPosition(l, 1, r), r);
      }
    }
  }
}

TEST(PrefillTest, BitsDoNotDependOnThreads) {
  if (TestWeights() == nullptr) return;
  for (ComputeType compute : {ComputeType::kF32, ComputeType::kBf16}) {
    std::vector<std::vector<float>> logits(2);
    std::vector<std::vector<int32_t>> kept(2);
    for (int threads : {1, 2}) {
      const auto run = static_cast<size_t>(threads - 1);
      Rig rig(compute, threads, 700);
      auto cache = rig.Prefilled(RandomPrompt(700, 5), Retention{0.2}, 1, logits[run]);
      for (int l = 0; l < cache->layers(); ++l) {
        for (int h = 0; h < rig.layout.kv_heads; ++h) {
          for (int64_t r = 0; r < cache->rows(l); ++r)
            kept[run].push_back(cache->RowPosition(l, h, r));
        }
      }
      DecodeStep decode(rig.decoder.get());
      const DecodeRow row = {.token = 9, .position = 700, .cache = cache.get()};
      std::vector<float> next(logits[run].size());
      ASSERT_TRUE(decode.Run({&row, 1}, next.data()).ok());
      logits[run].insert(logits[run].end(), next.begin(), next.end());
    }
    ExpectSameBits(logits[0], logits[1]);
    EXPECT_EQ(kept[0], kept[1]);
  }
}

}  // namespace
}  // namespace ripplekv
