#include "server/kv/sequence_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "kernels/bf16.h"
#include "server/kv/invariants.h"

namespace ripplekv {
namespace {

constexpr int kLayers = 3;
constexpr int kHeads = 2;
constexpr int kDim = 16;

struct Memory {
  std::unique_ptr<PageArena> arena;
  std::vector<LayerPool> pools;
  KvPageLayout layout;
};

Memory MakeMemory(KvType type, int rows_per_page, size_t pages) {
  Memory m;
  const size_t page = KvPageLayout::BytesForRowsPerPage(type, kHeads, kDim, rows_per_page);
  m.layout = KvPageLayout::For(type, kHeads, kDim, page);
  auto arena = PageArena::Create(
      {.total_bytes = 64 + pages * page, .page_bytes = page, .prefill_layer_bytes = 64});
  EXPECT_TRUE(arena.ok()) << arena.status();
  m.arena = *std::move(arena);
  m.pools = MakeLayerPools(kLayers, m.arena.get());
  return m;
}

absl::Status Check(const Memory& m, const SequenceCache& cache) {
  const SequenceCache* one = &cache;
  return CheckKvInvariants(*m.arena, m.pools, {&one, 1});
}

// A full layer's K or V whose every element tells head, position and lane.
template <typename T>
std::vector<T> FullSide(int64_t tokens, int side) {
  std::vector<T> out;
  for (int h = 0; h < kHeads; ++h) {
    for (int64_t t = 0; t < tokens; ++t) {
      for (int i = 0; i < kDim; ++i)
        out.push_back(static_cast<T>(side * 20000 + h * 9000 + t * kDim + i));
    }
  }
  return out;
}

template <typename T>
void ExpectRow(const std::byte* row, const std::vector<T>& side, int64_t tokens, int head,
               int64_t position) {
  const T* expected = side.data() + (head * tokens + position) * kDim;
  EXPECT_EQ(std::memcmp(row, expected, kDim * sizeof(T)), 0)
      << "head " << head << " position " << position;
}

template <typename T>
void CompactionKeepsTheChosenRows(KvType type) {
  const int64_t tokens = 100;
  const auto k = FullSide<T>(tokens, 0);
  const auto v = FullSide<T>(tokens, 1);
  std::mt19937 random(7);
  for (int64_t kept : {int64_t{1}, int64_t{7}, int64_t{8}, int64_t{9}, int64_t{40}, tokens}) {
    Memory m = MakeMemory(type, 8, 60);
    auto cache = SequenceCache::Reserve(absl::MakeSpan(m.pools), m.layout,
                                        std::vector<int64_t>(kLayers, kept + 5));
    ASSERT_TRUE(cache.ok()) << cache.status();
    std::vector<int32_t> indices;
    for (int h = 0; h < kHeads; ++h) {
      std::vector<int32_t> all(tokens);
      std::iota(all.begin(), all.end(), 0);
      std::shuffle(all.begin(), all.end(), random);
      std::sort(all.begin(), all.begin() + kept);
      indices.insert(indices.end(), all.begin(), all.begin() + kept);
    }
    ASSERT_TRUE(cache->Compact(1, k.data(), v.data(), tokens * kDim, indices, kept).ok());
    EXPECT_EQ(cache->rows(0), 0);
    EXPECT_EQ(cache->rows(1), kept);
    EXPECT_EQ(cache->pages(1), (kept + 7) / 8);
    EXPECT_EQ(cache->bytes(1), static_cast<size_t>((kept + 7) / 8) * m.layout.page_bytes);
    EXPECT_EQ(cache->bytes(), cache->bytes(1));
    for (int h = 0; h < kHeads; ++h) {
      for (int64_t r = 0; r < kept; ++r) {
        const int32_t position = indices[static_cast<size_t>(h * kept + r)];
        EXPECT_EQ(cache->RowPosition(1, h, r), position);
        ExpectRow(cache->KeyRow(1, h, r), k, tokens, h, position);
        ExpectRow(cache->ValueRow(1, h, r), v, tokens, h, position);
      }
    }
    EXPECT_TRUE(Check(m, *cache).ok()) << Check(m, *cache);
  }
}

TEST(SequenceCacheTest, CompactionKeepsTheChosenRowsF32) {
  CompactionKeepsTheChosenRows<float>(KvType::kF32);
}
TEST(SequenceCacheTest, CompactionKeepsTheChosenRowsBf16) {
  CompactionKeepsTheChosenRows<uint16_t>(KvType::kBf16);
}

TEST(SequenceCacheTest, StoreAllEqualsCompactionOfEveryPosition) {
  const int64_t tokens = 50;
  const auto k = FullSide<float>(tokens, 0);
  const auto v = FullSide<float>(tokens, 1);
  Memory m = MakeMemory(KvType::kF32, 8, 60);
  auto cache = SequenceCache::Reserve(absl::MakeSpan(m.pools), m.layout,
                                      std::vector<int64_t>(kLayers, tokens));
  ASSERT_TRUE(cache.ok());
  ASSERT_TRUE(cache->StoreAll(0, k.data(), v.data(), tokens * kDim, tokens).ok());
  for (int h = 0; h < kHeads; ++h) {
    for (int64_t r = 0; r < tokens; ++r) {
      ASSERT_EQ(cache->RowPosition(0, h, r), r);
      ExpectRow(cache->KeyRow(0, h, r), k, tokens, h, r);
      ExpectRow(cache->ValueRow(0, h, r), v, tokens, h, r);
    }
  }
}

TEST(SequenceCacheTest, AppendedRowsFollowAcrossPagesRoundedToTheType) {
  Memory m = MakeMemory(KvType::kBf16, 8, 60);
  auto cache =
      SequenceCache::Reserve(absl::MakeSpan(m.pools), m.layout, std::vector<int64_t>(kLayers, 20));
  ASSERT_TRUE(cache.ok());
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> keys, values;
  for (int r = 0; r < 20; ++r) {
    std::vector<float> k(kHeads * kDim), v(kHeads * kDim);
    for (float& x : k) x = normal(random);
    for (float& x : v) x = normal(random);
    ASSERT_TRUE(cache->AppendRow(2, k.data(), v.data(), 100 + r).ok());
    keys.push_back(k);
    values.push_back(v);
    ASSERT_TRUE(Check(m, *cache).ok()) << Check(m, *cache);
  }
  const absl::Status full = cache->AppendRow(2, keys[0].data(), values[0].data(), 120);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(cache->rows(2), 20);
  for (int r = 0; r < 20; ++r) {
    for (int h = 0; h < kHeads; ++h) {
      EXPECT_EQ(cache->RowPosition(2, h, r), 100 + r);
      uint16_t k[kDim], v[kDim];
      std::memcpy(k, cache->KeyRow(2, h, r), sizeof k);
      std::memcpy(v, cache->ValueRow(2, h, r), sizeof v);
      for (int i = 0; i < kDim; ++i) {
        EXPECT_EQ(k[i],
                  FloatToBf16(keys[static_cast<size_t>(r)][static_cast<size_t>(h * kDim + i)]));
        EXPECT_EQ(v[i],
                  FloatToBf16(values[static_cast<size_t>(r)][static_cast<size_t>(h * kDim + i)]));
      }
    }
  }
}

TEST(SequenceCacheTest, MoreRowsThanReservedAreRefused) {
  const auto side = FullSide<float>(30, 0);
  Memory m = MakeMemory(KvType::kF32, 8, 60);
  auto cache =
      SequenceCache::Reserve(absl::MakeSpan(m.pools), m.layout, std::vector<int64_t>(kLayers, 29));
  ASSERT_TRUE(cache.ok());
  EXPECT_EQ(cache->StoreAll(0, side.data(), side.data(), 30 * kDim, 30).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(cache->rows(0), 0);
  EXPECT_TRUE(Check(m, *cache).ok());
}

// Random lives of sequences: every count is compared with a plain model of what is held, and the
// invariants after each step.
TEST(SequenceCacheTest, RandomLivesKeepTheAccounts) {
  const auto side = FullSide<float>(64, 0);
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    Memory m = MakeMemory(KvType::kF32, 4, 120);
    std::vector<std::unique_ptr<SequenceCache>> live;
    int64_t refused = 0;
    const std::vector<float> row(kHeads * kDim, 1.0f);
    for (int step = 0; step < 400; ++step) {
      const uint32_t action = random() % 10;
      if (action < 3) {
        std::vector<int64_t> capacity;
        for (int l = 0; l < kLayers; ++l) capacity.push_back(1 + random() % 64);
        int64_t wanted = 0;
        for (int64_t rows : capacity) wanted += (rows + 3) / 4;
        const int64_t available = m.arena->available_pages();
        auto cache = SequenceCache::Reserve(absl::MakeSpan(m.pools), m.layout, capacity);
        ASSERT_EQ(cache.ok(), wanted <= available);
        if (cache.ok()) {
          live.push_back(std::make_unique<SequenceCache>(*std::move(cache)));
        } else {
          ++refused;
          ASSERT_EQ(m.arena->available_pages(), available);
        }
      } else if (!live.empty()) {
        const size_t which = random() % live.size();
        SequenceCache& cache = *live[which];
        const int layer = static_cast<int>(random() % kLayers);
        if (action < 5 && cache.rows(layer) == 0) {
          const int64_t rows = 1 + random() % 64;
          const bool fits = rows <= cache.capacity(layer);
          ASSERT_EQ(cache.StoreAll(layer, side.data(), side.data(), 64 * kDim, rows).ok(), fits);
        } else if (action < 8) {
          const bool fits = cache.rows(layer) < cache.capacity(layer);
          ASSERT_EQ(cache
                        .AppendRow(layer, row.data(), row.data(),
                                   static_cast<int32_t>(100 + cache.rows(layer)))
                        .ok(),
                    fits);
        } else if (action == 8) {
          live.erase(live.begin() + static_cast<ptrdiff_t>(which));
        } else if (live.size() >= 2) {
          // Moving onto another sequence ends that one.
          const size_t other = (which + 1) % live.size();
          *live[other] = std::move(cache);
          live.erase(live.begin() + static_cast<ptrdiff_t>(which));
        }
      }
      int64_t used = 0, promised = 0;
      for (const auto& cache : live) {
        for (int l = 0; l < kLayers; ++l) {
          used += (cache->rows(l) + 3) / 4;
          promised += (cache->capacity(l) + 3) / 4 - (cache->rows(l) + 3) / 4;
        }
      }
      ASSERT_EQ(m.arena->used_pages(), used);
      ASSERT_EQ(m.arena->reserved_pages(), promised);
      ASSERT_EQ(m.arena->available_pages(), 120 - used - promised);
      std::vector<const SequenceCache*> all;
      for (const auto& cache : live) all.push_back(cache.get());
      const absl::Status status = CheckKvInvariants(*m.arena, m.pools, all);
      ASSERT_TRUE(status.ok()) << status << " seed " << seed << " step " << step;
    }
    EXPECT_GT(refused, 0) << "the arena was never full: the test shows too little";
    live.clear();
    EXPECT_EQ(m.arena->available_pages(), 120);
  }
}

}  // namespace
}  // namespace ripplekv
