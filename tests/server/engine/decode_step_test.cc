#include "server/engine/decode_step.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "server/kv/invariants.h"
#include "tests/server/engine/rig.h"

namespace ripplekv {
namespace {

// A sequence's logits have the same bits alone and in a batch of ragged others, over several steps.
TEST(DecodeStepTest, ABatchGivesEachSequenceItsOwnBits) {
  if (TestWeights() == nullptr) return;
  Rig rig(ComputeType::kBf16, 2, 400);
  const std::vector<size_t> lengths = {300, 37, 1, 390, 64, 129, 256, 257};
  constexpr int kSteps = 3;
  const auto vocab = static_cast<size_t>(rig.decoder->config().vocab);
  DecodeStep decode(rig.decoder.get());

  std::vector<std::vector<float>> alone;
  for (size_t i = 0; i < lengths.size(); ++i) {
    std::vector<float> logits;
    auto cache = rig.Prefilled(RandomPrompt(lengths[i], static_cast<uint32_t>(i)), Retention{0.3},
                               kSteps, logits);
    std::vector<float> all;
    for (int step = 0; step < kSteps; ++step) {
      const DecodeRow row = {
          .token = static_cast<int32_t>(500 + 10 * i + static_cast<size_t>(step)),
          .position = static_cast<int32_t>(lengths[i]) + step,
          .cache = cache.get()};
      ASSERT_TRUE(decode.Run({&row, 1}, logits.data()).ok());
      all.insert(all.end(), logits.begin(), logits.end());
    }
    alone.push_back(std::move(all));
  }

  std::vector<std::unique_ptr<SequenceCache>> caches;
  std::vector<float> logits;
  for (size_t i = 0; i < lengths.size(); ++i) {
    caches.push_back(rig.Prefilled(RandomPrompt(lengths[i], static_cast<uint32_t>(i)),
                                   Retention{0.3}, kSteps, logits));
  }
  std::vector<float> batch(lengths.size() * vocab);
  for (int step = 0; step < kSteps; ++step) {
    std::vector<DecodeRow> rows;
    for (size_t i = 0; i < lengths.size(); ++i) {
      rows.push_back({.token = static_cast<int32_t>(500 + 10 * i + static_cast<size_t>(step)),
                      .position = static_cast<int32_t>(lengths[i]) + step,
                      .cache = caches[i].get()});
    }
    ASSERT_TRUE(decode.Run(rows, batch.data()).ok());
    for (size_t i = 0; i < lengths.size(); ++i) {
      EXPECT_EQ(
          std::memcmp(batch.data() + i * vocab, alone[i].data() + static_cast<size_t>(step) * vocab,
                      vocab * sizeof(float)),
          0)
          << "sequence " << i << " step " << step;
    }
  }
  std::vector<const SequenceCache*> all;
  for (const auto& cache : caches) all.push_back(cache.get());
  const absl::Status sound = CheckKvInvariants(*rig.arena, rig.pools, all);
  EXPECT_TRUE(sound.ok()) << sound;
}

// Every sequence stores every layer in types of its own, some of them alike in some layers.
TEST(DecodeStepTest, LayersOfManyTypesInOneBatchKeepTheirBits) {
  if (TestWeights() == nullptr) return;
  Rig rig(ComputeType::kBf16, 2, 300);
  DecodeStep decode(rig.decoder.get());
  const auto layers = static_cast<size_t>(rig.decoder->config().layers);
  const auto vocab = static_cast<size_t>(rig.decoder->config().vocab);
  constexpr size_t kSequences = 6;
  constexpr int kSteps = 3;
  std::mt19937 random(3);
  std::vector<std::vector<KvTypes>> types(kSequences, std::vector<KvTypes>(layers, KvType::kBf16));
  for (size_t i = 1; i < kSequences; ++i) {
    for (KvTypes& layer : types[i]) layer = {kKvTypes[random() % 4], kKvTypes[random() % 4]};
  }
  types[4] = types[2];  // side by side in every layer
  types[5][0] = types[1][0];
  std::vector<float> logits(vocab);
  const auto prefilled = [&](size_t i) {
    const auto seed = static_cast<uint32_t>(i);
    return rig.Prefilled(RandomPrompt(30 + 50 * i, seed), Retention{0.5}, kSteps, logits, types[i]);
  };
  const auto row = [&](size_t i, int step, SequenceCache* cache) {
    return DecodeRow{.token = static_cast<int32_t>(500 + 10 * i + static_cast<size_t>(step)),
                     .position = static_cast<int32_t>(30 + 50 * i) + step,
                     .cache = cache};
  };
  std::vector<std::vector<float>> alone(kSequences);
  for (size_t i = 0; i < kSequences; ++i) {
    const auto cache = prefilled(i);
    for (size_t l = 0; l < layers; ++l) {
      ASSERT_EQ(cache->layout(static_cast<int>(l)).stored(), types[i][l]);
    }
    for (int step = 0; step < kSteps; ++step) {
      const DecodeRow one = row(i, step, cache.get());
      ASSERT_TRUE(decode.Run({&one, 1}, logits.data()).ok());
      alone[i].insert(alone[i].end(), logits.begin(), logits.end());
    }
  }
  std::vector<std::unique_ptr<SequenceCache>> caches;
  std::vector<const SequenceCache*> all;
  for (size_t i = 0; i < kSequences; ++i) {
    caches.push_back(prefilled(i));
    all.push_back(caches.back().get());
  }
  std::vector<float> batch(kSequences * vocab);
  for (int step = 0; step < kSteps; ++step) {
    std::vector<DecodeRow> rows;
    for (size_t i = 0; i < kSequences; ++i) rows.push_back(row(i, step, caches[i].get()));
    ASSERT_TRUE(decode.Run(rows, batch.data()).ok());
    for (size_t i = 0; i < kSequences; ++i) {
      EXPECT_EQ(
          std::memcmp(batch.data() + i * vocab, alone[i].data() + static_cast<size_t>(step) * vocab,
                      vocab * sizeof(float)),
          0)
          << "sequence " << i << " step " << step;
    }
  }
  const absl::Status sound = CheckKvInvariants(*rig.arena, rig.pools, all);
  EXPECT_TRUE(sound.ok()) << sound;
}

// Only what one layer's rows were rounded to has changed: the hidden states below it have not.
TEST(DecodeStepTest, ALayersTypeIsThatLayersAlone) {
  if (TestWeights() == nullptr) return;
  Rig rig(ComputeType::kF32, 1, 120);
  DecodeStep decode(rig.decoder.get());
  const int layers = rig.decoder->config().layers;
  const auto prompt = RandomPrompt(100, 9);
  std::vector<float> logits;
  const auto plain = rig.Prefilled(prompt, Full{}, 1, logits);
  const DecodeRow first = {.token = 700, .position = 100, .cache = plain.get()};
  ASSERT_TRUE(decode.Run({&first, 1}, logits.data()).ok());
  const std::vector<float> exact = logits;
  for (int changed : {0, layers / 2, layers - 1}) {
    std::vector<KvTypes> types(static_cast<size_t>(layers), KvType::kF32);
    types[static_cast<size_t>(changed)] = KvType::kInt4;
    const auto cache = rig.Prefilled(prompt, Full{}, 1, logits, types);
    const DecodeRow row = {.token = 700, .position = 100, .cache = cache.get()};
    ASSERT_TRUE(decode.Run({&row, 1}, logits.data()).ok());
    EXPECT_NE(logits, exact);
    for (int l = 0; l < layers; ++l) {
      const size_t d = static_cast<size_t>(plain->layout(l).head_dim) * sizeof(float);
      for (int64_t r = 0; r < 101; r += 10) {
        if (l == changed) break;
        // The new row of a layer above comes out of the changed one; the prompt's rows do not.
        const bool same = std::memcmp(plain->KeyRow(l, 0, r), cache->KeyRow(l, 0, r), d) == 0;
        EXPECT_EQ(same, r < 100 || l < changed) << "layer " << l << " row " << r;
      }
    }
  }
}

TEST(DecodeStepTest, ACacheWithoutRoomIsLeftAsItWas) {
  if (TestWeights() == nullptr) return;
  Rig rig(ComputeType::kF32, 2, 40);
  std::vector<float> logits;
  auto cache = rig.Prefilled(RandomPrompt(40, 1), Full{}, 0, logits);
  DecodeStep decode(rig.decoder.get());
  const DecodeRow row = {.token = 5, .position = 40, .cache = cache.get()};
  EXPECT_EQ(decode.Run({&row, 1}, logits.data()).code(), absl::StatusCode::kResourceExhausted);
  for (int l = 0; l < cache->layers(); ++l) EXPECT_EQ(cache->rows(l), 40);
}

}  // namespace
}  // namespace ripplekv
