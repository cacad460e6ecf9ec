#include "server/kv/invariants.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace ripplekv {
namespace {

using ::testing::HasSubstr;

// The checker must find each kind of damage; the sound state passes.
class InvariantsTest : public ::testing::Test {
 protected:
  InvariantsTest() {
    const size_t page = KvPageLayout::BytesForRowsPerPage(KvType::kF32, 1, 8, 4);
    layout_ = KvPageLayout::For(KvType::kF32, 1, 8, page);
    arena_ = *PageArena::Create(
        {.total_bytes = 64 + 20 * page, .page_bytes = page, .prefill_layer_bytes = 64});
    pools_ = MakeLayerPools(2, arena_.get());
    cache_ = std::make_unique<SequenceCache>(
        *SequenceCache::Reserve(absl::MakeSpan(pools_), layout_, {10, 10}));
    for (int layer = 0; layer < 2; ++layer) Append(layer, {0, 3, 4, 7, 9});
  }
  void Append(int layer, const std::vector<int32_t>& positions) {
    const std::vector<float> row(8, 1.0f);
    for (int32_t p : positions)
      EXPECT_TRUE(cache_->AppendRow(layer, row.data(), row.data(), p).ok());
  }
  std::string Broken() {
    const SequenceCache* one = cache_.get();
    const absl::Status status = CheckKvInvariants(*arena_, pools_, {&one, 1});
    EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kInternal);
    return std::string(status.message());
  }

  KvPageLayout layout_;
  std::unique_ptr<PageArena> arena_;
  std::vector<LayerPool> pools_;
  std::unique_ptr<SequenceCache> cache_;
};

TEST_F(InvariantsTest, ASoundStatePasses) { EXPECT_EQ(Broken(), ""); }

TEST_F(InvariantsTest, PositionsOutOfOrder) {
  Append(1, {9});
  EXPECT_THAT(Broken(), HasSubstr("layer 1, KV head 0, row 5: position 9 after 9"));
}

TEST_F(InvariantsTest, APageThatNobodyHolds) {
  ASSERT_TRUE(arena_->Reserve(1).ok());
  const PageId lost = arena_->Take();
  EXPECT_THAT(Broken(),
              HasSubstr("page " + std::to_string(lost) + " is neither free nor in a page table"));
  arena_->Free(lost);
  EXPECT_EQ(Broken(), "");
}

TEST_F(InvariantsTest, APageThatIsFreeAndInATable) {
  const PageId page = cache_->page_table(0)[0];
  arena_->Free(page);
  EXPECT_THAT(Broken(), HasSubstr("holds page " + std::to_string(page) + " twice"));
  // Take it back out of the free list, so that it is not freed twice.
  ASSERT_TRUE(arena_->Reserve(1).ok());
  EXPECT_EQ(arena_->Take(), page);
}

TEST_F(InvariantsTest, APromiseThatNobodyHolds) {
  ASSERT_TRUE(arena_->Reserve(1).ok());
  EXPECT_THAT(Broken(), HasSubstr("the arena counts"));
  arena_->Unreserve(1);
  auto held_elsewhere = pools_[1].Reserve(2);
  EXPECT_THAT(Broken(), HasSubstr("layer 1's pool counts"));
}

TEST_F(InvariantsTest, SharedPagesNeedTheirOwner) {
  // 5 rows in pages of 4: one full page is shared, a row is copied.
  auto over = SequenceCache::ReserveOver(*cache_, absl::MakeSpan(pools_), {12, 12});
  ASSERT_TRUE(over.ok()) << over.status();
  const SequenceCache* both[] = {cache_.get(), &*over};
  EXPECT_TRUE(CheckKvInvariants(*arena_, pools_, both).ok())
      << CheckKvInvariants(*arena_, pools_, both);
  const SequenceCache* reversed[] = {&*over, cache_.get()};
  EXPECT_TRUE(CheckKvInvariants(*arena_, pools_, reversed).ok());

  // The owner loses the rows that are shared.
  cache_->Truncate(1, 3);
  const std::string page = std::to_string(over->page_table(1)[0]);
  EXPECT_THAT(std::string(CheckKvInvariants(*arena_, pools_, both).message()),
              HasSubstr("sequence 1, layer 1 shares page " + page + " as 0"));
  // The owner dies; its page is free and in a table.
  cache_.reset();
  const SequenceCache* orphan[] = {&*over};
  EXPECT_THAT(std::string(CheckKvInvariants(*arena_, pools_, orphan).message()),
              HasSubstr("sequence 0, layer 0 shares page"));
}

TEST_F(InvariantsTest, ASequenceThatIsNotCounted) {
  EXPECT_EQ(CheckKvInvariants(*arena_, pools_, {}).code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace ripplekv
