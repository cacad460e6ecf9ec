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
