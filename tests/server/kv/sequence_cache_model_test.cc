// Sequences, and sequences over them, against a plain model that keeps every row as numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/kv_codec.h"
#include "server/kv/invariants.h"
#include "server/kv/sequence_cache.h"

namespace ripplekv {
namespace {

constexpr int kLayers = 3;
constexpr int kHeads = 2;
constexpr int kDim = 4;

/// What a layer may store its keys and values in.
constexpr KvTypes kStored[] = {KvType::kF32,
                               KvType::kF32,
                               KvType::kBf16,
                               KvType::kInt8,
                               KvType::kInt4,
                               KvTypes(KvType::kInt8, KvType::kInt4),
                               KvTypes(KvType::kInt4, KvType::kF32)};

/// One row of one KV head. Its key is tag, tag + 1, ..., its value the same below zero, both
/// rounded to what the layer stores.
struct ModelRow {
  int32_t tag = 0;
  int32_t position = 0;
  double mass = 0;
  int seen = 0;  // committed steps
};

struct ModelLayer {
  std::vector<ModelRow> head[kHeads];
  KvPageLayout layout;
  int64_t base_rows = 0;
  int64_t capacity = 0;
  int64_t rows() const { return static_cast<int64_t>(head[0].size()); }
  int64_t PagesFor(int64_t n) const {
    return (n + layout.rows_per_page - 1) / layout.rows_per_page;
  }
  int64_t shared_pages() const { return base_rows / layout.rows_per_page; }
};

/// A row as a type stores it.
std::vector<float> Rounded(KvRole role, KvType type, std::vector<float> row) {
  if (type == KvType::kF32) return row;
  std::vector<std::byte> stored(KvRowBytes(type, kDim)), params(KvParamBytes(type, kDim));
  EncodeKvRow(role, type, row.data(), kDim, stored.data(), params.data());
  DecodeKvRow(role, type, stored.data(), params.data(), kDim, row.data());
  return row;
}

struct Sequence {
  std::unique_ptr<SequenceCache> cache;
  ModelLayer layer[kLayers];
  Sequence* base = nullptr;
  int users = 0;
  bool tracks = false;
  int32_t next_position = 0;
};

class SequenceCacheModelTest : public ::testing::Test {
 protected:
  /// A page holds rows_per_page rows of any type at least.
  void Start(uint32_t seed, int rows_per_page) {
    random_.seed(seed);
    size_t page = 0;
    for (KvTypes types : kStored) {
      page = std::max(page, KvPageLayout::BytesForRowsPerPage(types, kHeads, kDim, rows_per_page));
    }
    layout_ = KvPageLayout::For(KvType::kF32, kHeads, kDim, page);
    arena_ = *PageArena::Create(
        {.total_bytes = 64 + kPages * page, .page_bytes = page, .prefill_layer_bytes = 64});
    pools_ = MakeLayerPools(kLayers, arena_.get());
  }

  uint32_t Below(uint32_t n) { return random_() % n; }

  /// Rows as contiguous memory [kHeads, rows, kDim], and their tags.
  struct NewRows {
    std::vector<float> k, v;
    std::vector<int32_t> tags[kHeads];
  };
  NewRows MakeRows(int64_t rows) {
    NewRows made;
    for (int h = 0; h < kHeads; ++h) {
      for (int64_t r = 0; r < rows; ++r) {
        made.tags[h].push_back(next_tag_);
        for (int i = 0; i < kDim; ++i) {
          made.k.push_back(static_cast<float>(next_tag_ + i));
          made.v.push_back(-static_cast<float>(next_tag_ + i));
        }
        next_tag_ += kDim;
      }
    }
    return made;
  }

  void Reserve(Sequence* base) {
    auto sequence = std::make_unique<Sequence>();
    std::vector<int64_t> capacity;
    std::vector<KvPageLayout> layouts;
    int64_t wanted = 0;
    for (int l = 0; l < kLayers; ++l) {
      ModelLayer& layer = sequence->layer[l];
      layer.base_rows = base != nullptr ? base->layer[l].rows() : 0;
      layer.layout = base != nullptr ? base->layer[l].layout
                                     : layout_.With(kStored[Below(std::size(kStored))]);
      layer.capacity = layer.base_rows + Below(40);
      capacity.push_back(layer.capacity);
      layouts.push_back(layer.layout);
      wanted += layer.PagesFor(layer.capacity) - layer.shared_pages();
      if (base != nullptr) {
        for (int h = 0; h < kHeads; ++h) layer.head[h] = base->layer[l].head[h];
      }
      mixed_ += l > 0 && layer.layout.rows_per_page != layouts[0].rows_per_page;
    }
    const int64_t available = arena_->available_pages();
    auto cache = base != nullptr
                     ? SequenceCache::ReserveOver(*base->cache, absl::MakeSpan(pools_), capacity)
                     : SequenceCache::Reserve(absl::MakeSpan(pools_), layouts, capacity);
    ASSERT_EQ(cache.ok(), wanted <= available) << cache.status();
    if (!cache.ok()) {
      EXPECT_EQ(cache.status().code(), absl::StatusCode::kResourceExhausted);
      EXPECT_EQ(arena_->available_pages(), available);
      ++refused_;
      return;
    }
    EXPECT_EQ(arena_->available_pages(), available - wanted);
    sequence->cache = std::make_unique<SequenceCache>(*std::move(cache));
    if (base != nullptr) {
      sequence->base = base;
      sequence->next_position = base->next_position;
      ++base->users;
      ++over_;
    }
    live_.push_back(std::move(sequence));
  }

  void AppendRows(Sequence& s) {
    const int l = static_cast<int>(Below(kLayers));
    const int64_t rows = Below(9);
    const NewRows made = MakeRows(rows);
    const bool fits = s.layer[l].rows() + rows <= s.layer[l].capacity;
    ASSERT_EQ(
        s.cache->AppendRows(l, made.k.data(), made.v.data(), rows * kDim, rows, s.next_position)
            .ok(),
        fits);
    if (!fits) return;
    for (int h = 0; h < kHeads; ++h) {
      for (int64_t r = 0; r < rows; ++r) {
        s.layer[l].head[h].push_back(
            {made.tags[h][static_cast<size_t>(r)], s.next_position + static_cast<int32_t>(r)});
      }
    }
    s.next_position += static_cast<int32_t>(rows);
  }

  /// A row in every layer and its step's mass; in some rounds the step fails after a few layers.
  void Step(Sequence& s) {
    for (const ModelLayer& layer : s.layer) {
      if (layer.rows() == layer.capacity) return;
    }
    const int fails_at = Below(4) == 0 ? static_cast<int>(Below(kLayers + 1)) : -1;
    const int64_t used = arena_->used_pages(), promised = arena_->reserved_pages();
    std::vector<std::vector<float>> masses(kLayers);
    std::vector<NewRows> added;
    for (int l = 0; l < kLayers && l != fails_at; ++l) {
      added.push_back(MakeRows(1));
      const NewRows& made = added.back();
      ASSERT_TRUE(s.cache->AppendRow(l, made.k.data(), made.v.data(), s.next_position).ok());
      const PagedSequence view = s.cache->View(l);
      ASSERT_EQ(view.mass != nullptr, s.tracks);
      if (!s.tracks) continue;
      ASSERT_EQ(view.mass_first_row, s.layer[l].base_rows);
      const int64_t own = view.rows - view.mass_first_row;
      ASSERT_GE(view.mass_stride, own);
      for (int h = 0; h < kHeads; ++h) {
        for (int64_t r = 0; r < own; ++r) {
          const float mass = 0.25f * static_cast<float>(Below(4));
          view.mass[h * view.mass_stride + r] = mass;
          masses[static_cast<size_t>(l)].push_back(mass);
        }
      }
    }
    if (fails_at >= 0) {
      for (int l = 0; l < fails_at; ++l) s.cache->Truncate(l, s.layer[l].rows());
      ASSERT_EQ(arena_->used_pages(), used);
      ASSERT_EQ(arena_->reserved_pages(), promised);
      return;
    }
    s.cache->CommitStep();
    for (int l = 0; l < kLayers; ++l) {
      ModelLayer& layer = s.layer[l];
      size_t next = 0;
      for (int h = 0; h < kHeads; ++h) {
        layer.head[h].push_back({added[static_cast<size_t>(l)].tags[h][0], s.next_position});
        for (size_t r = static_cast<size_t>(layer.base_rows); s.tracks && r < layer.head[h].size();
             ++r) {
          layer.head[h][r].mass += masses[static_cast<size_t>(l)][next++];
          ++layer.head[h][r].seen;
        }
      }
    }
    ++s.next_position;
  }

  void Truncate(Sequence& s) {
    const int l = static_cast<int>(Below(kLayers));
    const int64_t own = s.layer[l].rows() - s.layer[l].base_rows;
    const int64_t rows = s.layer[l].base_rows + Below(static_cast<uint32_t>(own + 1));
    s.cache->Truncate(l, rows);
    for (auto& head : s.layer[l].head) head.resize(static_cast<size_t>(rows));
  }

  void CompactBack(Sequence& s) {
    const int l = static_cast<int>(Below(kLayers));
    ModelLayer& layer = s.layer[l];
    const int64_t own = layer.rows() - layer.base_rows;
    const int64_t target = layer.base_rows + Below(static_cast<uint32_t>(own + 2));
    const int sinks = static_cast<int>(Below(8)), recent = static_cast<int>(Below(4));
    const absl::Status status = s.cache->CompactBack(l, target, sinks, recent);
    if (target >= layer.rows()) {
      ASSERT_TRUE(status.ok()) << status;
      return;
    }
    if (!s.tracks) {
      ASSERT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
      return;
    }
    std::vector<ModelRow> kept[kHeads];
    for (int h = 0; h < kHeads; ++h) {
      const std::vector<ModelRow>& rows = layer.head[h];
      std::vector<ModelRow> others;
      for (size_t r = 0; r < rows.size(); ++r) {
        const bool stays = static_cast<int64_t>(r) < layer.base_rows || rows[r].position < sinks ||
                           r + static_cast<size_t>(recent) >= rows.size();
        (stays ? kept[h] : others).push_back(rows[r]);
      }
      if (static_cast<int64_t>(kept[h].size()) > target) {
        ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
        return;
      }
      const auto mean = [](const ModelRow& row) { return row.seen > 0 ? row.mass / row.seen : 0; };
      std::stable_sort(others.begin(), others.end(),
                       [&](const ModelRow& a, const ModelRow& b) { return mean(a) > mean(b); });
      for (const ModelRow& row : others) {
        if (static_cast<int64_t>(kept[h].size()) < target) kept[h].push_back(row);
      }
      std::sort(kept[h].begin(), kept[h].end(),
                [](const ModelRow& a, const ModelRow& b) { return a.position < b.position; });
    }
    ASSERT_TRUE(status.ok()) << status;
    for (int h = 0; h < kHeads; ++h) layer.head[h] = std::move(kept[h]);
    ++compactions_;
  }

  void ExpectSame(const Sequence& s) const {
    for (int l = 0; l < kLayers; ++l) {
      const ModelLayer& layer = s.layer[l];
      ASSERT_EQ(s.cache->rows(l), layer.rows());
      ASSERT_EQ(s.cache->base_rows(l), layer.base_rows);
      ASSERT_EQ(s.cache->capacity(l), layer.capacity);
      ASSERT_EQ(s.cache->pages(l), layer.PagesFor(layer.rows()));
      ASSERT_EQ(s.cache->shared_pages(l), layer.shared_pages());
      ASSERT_EQ(s.cache->bytes(l), static_cast<size_t>(s.cache->pages(l)) * layout_.page_bytes);
      const KvTypes types = layer.layout.stored();
      for (int64_t i = 0; i < s.cache->shared_pages(l); ++i) {
        ASSERT_EQ(s.cache->page_table(l)[static_cast<size_t>(i)],
                  s.base->cache->page_table(l)[static_cast<size_t>(i)]);
      }
      const int64_t stride = (layer.rows() + 3) * kDim;
      std::vector<float> k(static_cast<size_t>(stride * kHeads), 0.5f), v = k;
      s.cache->CopyRows(l, k.data(), v.data(), stride);
      for (int h = 0; h < kHeads; ++h) {
        ASSERT_EQ(layer.head[h].size(), static_cast<size_t>(layer.rows()));
        for (int64_t r = 0; r < layer.rows() + 3; ++r) {
          std::vector<float> key, value;
          for (int i = 0; i < kDim && r < layer.rows(); ++i) {
            key.push_back(static_cast<float>(layer.head[h][static_cast<size_t>(r)].tag + i));
            value.push_back(-key.back());
          }
          if (r < layer.rows()) {
            key = Rounded(KvRole::kKey, types.k, key);
            value = Rounded(KvRole::kValue, types.v, value);
          }
          for (int i = 0; i < kDim; ++i) {
            const auto at = static_cast<size_t>(h * stride + r * kDim + i);
            if (r >= layer.rows()) {
              ASSERT_EQ(k[at], 0.5f) << "written beyond the rows";
              ASSERT_EQ(v[at], 0.5f);
              continue;
            }
            ASSERT_EQ(k[at], key[static_cast<size_t>(i)])
                << "layer " << l << " head " << h << " row " << r;
            ASSERT_EQ(v[at], value[static_cast<size_t>(i)]);
          }
          if (r < layer.rows()) {
            ASSERT_EQ(s.cache->RowPosition(l, h, r),
                      layer.head[h][static_cast<size_t>(r)].position);
          }
        }
      }
    }
  }

  void ExpectAccounts() const {
    int64_t used = 0, promised = 0;
    std::vector<const SequenceCache*> all;
    for (const auto& s : live_) {
      for (const ModelLayer& layer : s->layer) {
        used += layer.PagesFor(layer.rows()) - layer.shared_pages();
        promised += layer.PagesFor(layer.capacity) - layer.PagesFor(layer.rows());
      }
      all.push_back(s->cache.get());
    }
    ASSERT_EQ(arena_->used_pages(), used);
    ASSERT_EQ(arena_->reserved_pages(), promised);
    ASSERT_EQ(arena_->available_pages(), static_cast<int64_t>(kPages) - used - promised);
    const absl::Status status = CheckKvInvariants(*arena_, pools_, all);
    ASSERT_TRUE(status.ok()) << status;
  }

  static constexpr size_t kPages = 150;
  std::mt19937 random_;
  KvPageLayout layout_;
  std::unique_ptr<PageArena> arena_;
  std::vector<LayerPool> pools_;
  std::vector<std::unique_ptr<Sequence>> live_;
  int32_t next_tag_ = 0;
  int refused_ = 0, over_ = 0, compactions_ = 0, mixed_ = 0;
};

TEST_F(SequenceCacheModelTest, RandomLivesKeepTheirRowsAndTheAccounts) {
  for (uint32_t seed = 0; seed < 48; ++seed) {
    Start(seed, std::vector<int>{1, 3, 4, 8}[seed % 4]);
    for (int step = 0; step < 500; ++step) {
      SCOPED_TRACE("seed " + std::to_string(seed) + " step " + std::to_string(step));
      const uint32_t action = Below(20);
      if (live_.empty() || action < 2) {
        Reserve(nullptr);
      } else {
        const size_t which = Below(static_cast<uint32_t>(live_.size()));
        Sequence& s = *live_[which];
        // A sequence that others go on from does not change.
        if (action < 4 && s.base == nullptr) {
          Reserve(&s);
        } else if (action == 4 && s.users == 0) {
          if (s.base != nullptr) --s.base->users;
          live_.erase(live_.begin() + static_cast<ptrdiff_t>(which));
        } else if (s.users == 0) {
          if (action < 8) {
            AppendRows(s);
          } else if (action < 15) {
            Step(s);
          } else if (action == 15) {
            Truncate(s);
          } else if (action == 16) {
            s.cache->TrackMass();
            s.tracks = true;
          } else {
            CompactBack(s);
          }
        }
      }
      if (HasFatalFailure()) return;
      ExpectAccounts();
      for (const auto& s : live_) {
        ExpectSame(*s);
        if (HasFatalFailure()) return;
      }
    }
    while (!live_.empty()) {
      for (size_t i = live_.size(); i > 0; --i) {
        if (live_[i - 1]->users > 0) continue;
        if (live_[i - 1]->base != nullptr) --live_[i - 1]->base->users;
        live_.erase(live_.begin() + static_cast<ptrdiff_t>(i - 1));
      }
    }
    ASSERT_EQ(arena_->available_pages(), static_cast<int64_t>(kPages));
  }
  EXPECT_GT(refused_, 20) << "the arena was hardly ever full: the test shows too little";
  EXPECT_GT(over_, 200);
  EXPECT_GT(compactions_, 200);
  EXPECT_GT(mixed_, 1000) << "layers of different types";
}

// Whichever layer's reservation fails, all pools are as before and the base is untouched.
TEST_F(SequenceCacheModelTest, AFailureInAnyLayerLeavesThePoolsAsTheyWere) {
  Start(1, 4);
  live_.push_back(std::make_unique<Sequence>());
  Sequence& base = *live_.back();
  auto cache = SequenceCache::Reserve(absl::MakeSpan(pools_), layout_, {10, 10, 10});
  ASSERT_TRUE(cache.ok());
  base.cache = std::make_unique<SequenceCache>(*std::move(cache));
  for (ModelLayer& layer : base.layer) {
    layer.layout = layout_;
    layer.capacity = 10;
  }
  for (int i = 0; i < 60; ++i) AppendRows(base);
  const int n = layout_.rows_per_page;
  ASSERT_EQ(base.layer[0].rows() % n + base.layer[1].rows() % n > 0, true);
  const int64_t available = arena_->available_pages();
  for (size_t failing = 0; failing < kLayers; ++failing) {
    for (int64_t beyond : {int64_t{1}, int64_t{1000}}) {
      std::vector<int64_t> capacity(kLayers);
      int64_t others = 0;
      for (size_t l = 0; l < kLayers; ++l) {
        capacity[l] = base.layer[l].rows() + 5;
        if (l < failing) {
          others += SequenceCache::OwnPagesFor(layout_, base.layer[l].rows(), capacity[l]);
        }
      }
      // Just more pages than the layers before it leave.
      capacity[failing] = (base.layer[failing].rows() / n + available - others + beyond) * n;
      auto over = SequenceCache::ReserveOver(*base.cache, absl::MakeSpan(pools_), capacity);
      ASSERT_EQ(over.status().code(), absl::StatusCode::kResourceExhausted);
      EXPECT_NE(over.status().message().find("layer " + std::to_string(failing)), std::string::npos)
          << over.status();
      ExpectAccounts();
      ExpectSame(base);
    }
  }
}

TEST_F(SequenceCacheModelTest, CompactionSaysWhatDoesNotFit) {
  Start(2, 4);
  Reserve(nullptr);
  auto cache = SequenceCache::Reserve(absl::MakeSpan(pools_), layout_, {20, 20, 20});
  ASSERT_TRUE(cache.ok());
  const NewRows made = MakeRows(10);
  ASSERT_TRUE(cache->AppendRows(1, made.k.data(), made.v.data(), 10 * kDim, 10, 0).ok());
  EXPECT_EQ(cache->CompactBack(1, 6, 2, 2).code(), absl::StatusCode::kFailedPrecondition);
  cache->TrackMass();
  const absl::Status status = cache->CompactBack(1, 6, 4, 3);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("layer 1, KV head 0 cannot be compacted to 6 rows"),
            std::string::npos)
      << status;
  EXPECT_EQ(cache->rows(1), 10);
  // Nothing has been seen yet: ties go to the lower position.
  ASSERT_TRUE(cache->CompactBack(1, 6, 1, 2).ok());
  const int32_t expected[] = {0, 1, 2, 3, 8, 9};
  for (int h = 0; h < kHeads; ++h) {
    for (int r = 0; r < 6; ++r) EXPECT_EQ(cache->RowPosition(1, h, r), expected[r]);
  }
}

// bf16 rows pass through unchanged, in, over a page boundary, and out.
TEST(SequenceCacheBf16Test, RowsPassThroughUnchanged) {
  const size_t page = KvPageLayout::BytesForRowsPerPage(KvType::kBf16, kHeads, kDim, 5);
  const KvPageLayout layout = KvPageLayout::For(KvType::kBf16, kHeads, kDim, page);
  auto arena = PageArena::Create(
      {.total_bytes = 64 + 40 * page, .page_bytes = page, .prefill_layer_bytes = 64});
  ASSERT_TRUE(arena.ok());
  auto pools = MakeLayerPools(1, arena->get());
  auto base = SequenceCache::Reserve(absl::MakeSpan(pools), layout, {7});
  ASSERT_TRUE(base.ok());
  std::vector<uint16_t> k, v;
  for (int i = 0; i < kHeads * 16 * kDim; ++i) {
    k.push_back(static_cast<uint16_t>(i));
    v.push_back(static_cast<uint16_t>(40000 + i));
  }
  // [kHeads, 16, kDim]: the first 7 rows are the base's.
  ASSERT_TRUE(base->AppendRows(0, k.data(), v.data(), 16 * kDim, 7, 0).ok());
  auto over = SequenceCache::ReserveOver(*base, absl::MakeSpan(pools), {16});
  ASSERT_TRUE(over.ok());
  ASSERT_TRUE(over->AppendRows(0, k.data() + 7 * kDim, v.data() + 7 * kDim, 16 * kDim, 9, 7).ok());
  std::vector<uint16_t> k_out(k.size()), v_out(v.size());
  over->CopyRows(0, k_out.data(), v_out.data(), 16 * kDim);
  EXPECT_EQ(k_out, k);
  EXPECT_EQ(v_out, v);
  EXPECT_EQ(over->RowPosition(0, 1, 15), 15);
  EXPECT_EQ(over->AppendRows(0, k.data(), v.data(), 16 * kDim, 1, 16).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(base->rows(0), 7);
}

}  // namespace
}  // namespace ripplekv
