#include "server/kv/layer_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace ripplekv {
namespace {

using ::testing::HasSubstr;

class LayerPoolTest : public ::testing::Test {
 protected:
  LayerPoolTest() {
    auto arena = PageArena::Create(
        {.total_bytes = 64 + 100 * 64, .page_bytes = 64, .prefill_layer_bytes = 64});
    EXPECT_TRUE(arena.ok()) << arena.status();
    arena_ = *std::move(arena);
    pools_ = MakeLayerPools(3, arena_.get());
  }
  std::unique_ptr<PageArena> arena_;
  std::vector<LayerPool> pools_;
};

TEST_F(LayerPoolTest, AReservationFreesItself) {
  {
    auto reservation = pools_[1].Reserve(10);
    ASSERT_TRUE(reservation.ok());
    const PageId id = reservation->Take();
    EXPECT_EQ(reservation->pages(), 9);
    EXPECT_EQ(pools_[1].used_pages(), 1);
    EXPECT_EQ(pools_[1].reserved_pages(), 9);
    EXPECT_EQ(pools_[1].used_bytes(), 64u);
    EXPECT_EQ(pools_[1].reserved_bytes(), 9 * 64u);
    EXPECT_EQ(arena_->available_pages(), 90);
    pools_[1].Free(id);
  }
  EXPECT_EQ(pools_[1].used_pages(), 0);
  EXPECT_EQ(pools_[1].reserved_pages(), 0);
  EXPECT_EQ(arena_->available_pages(), 100);
}

TEST_F(LayerPoolTest, ReturnUndoesTake) {
  auto reservation = pools_[1].Reserve(3);
  ASSERT_TRUE(reservation.ok());
  const PageId first = reservation->Take();
  const PageId second = reservation->Take();
  reservation->Return(second);
  EXPECT_EQ(reservation->pages(), 2);
  EXPECT_EQ(pools_[1].used_pages(), 1);
  EXPECT_EQ(pools_[1].reserved_pages(), 2);
  EXPECT_EQ(arena_->used_pages(), 1);
  EXPECT_EQ(arena_->reserved_pages(), 2);
  EXPECT_EQ(arena_->available_pages(), 97);
  EXPECT_EQ(reservation->Take(), second);
  pools_[1].Free(first);
  pools_[1].Free(second);
}

// A page goes back to its promise even where every other page is taken.
TEST_F(LayerPoolTest, ReturnWorksInAFullArena) {
  auto all = pools_[0].Reserve(100);
  ASSERT_TRUE(all.ok());
  std::vector<PageId> pages;
  while (all->pages() > 0) pages.push_back(all->Take());
  all->Return(pages.back());
  pages.pop_back();
  EXPECT_EQ(arena_->available_pages(), 0);
  EXPECT_FALSE(pools_[2].Reserve(1).ok());
  EXPECT_EQ(all->pages(), 1);
  for (PageId id : pages) pools_[0].Free(id);
}

TEST_F(LayerPoolTest, MovingAReservationKeepsOnePromise) {
  auto first = pools_[0].Reserve(10);
  auto second = pools_[2].Reserve(20);
  ASSERT_TRUE(first.ok() && second.ok());
  PageReservation moved = *std::move(first);
  EXPECT_EQ(arena_->reserved_pages(), 30);
  moved = *std::move(second);  // gives back the 10 of layer 0
  EXPECT_EQ(arena_->reserved_pages(), 20);
  EXPECT_EQ(pools_[0].reserved_pages(), 0);
  EXPECT_EQ(pools_[2].reserved_pages(), 20);
  PageReservation& self = moved;
  moved = std::move(self);
  EXPECT_EQ(moved.pages(), 20);
  EXPECT_EQ(arena_->reserved_pages(), 20);
  moved = PageReservation();
  EXPECT_EQ(arena_->reserved_pages(), 0);
}

TEST_F(LayerPoolTest, AFailureInAnyLayerLeavesEveryPoolAsItWas) {
  for (size_t failing = 0; failing < 3; ++failing) {
    std::vector<int64_t> pages(3, 20);
    pages[failing] = 90;
    auto reservations = ReserveLayers(absl::MakeSpan(pools_), pages);
    EXPECT_EQ(reservations.status().code(), absl::StatusCode::kResourceExhausted);
    // The sum passes 100 in the failing layer, or in the one after it where the failing one is the
    // first.
    EXPECT_THAT(std::string(reservations.status().message()),
                HasSubstr("layer " + std::to_string(failing == 0 ? 1 : failing)));
    EXPECT_EQ(arena_->available_pages(), 100);
    for (const LayerPool& pool : pools_) EXPECT_EQ(pool.reserved_pages(), 0);
  }
  auto reservations = ReserveLayers(absl::MakeSpan(pools_), {20, 30, 50});
  ASSERT_TRUE(reservations.ok());
  EXPECT_EQ(arena_->available_pages(), 0);
  EXPECT_EQ(pools_[1].reserved_pages(), 30);
}

TEST_F(LayerPoolTest, QuotasShareThePagesByWeight) {
  SetQuotas(absl::MakeSpan(pools_), {1.0, 2.0, 1.0});
  EXPECT_EQ(pools_[0].quota_bytes(), 25 * 64u);
  EXPECT_EQ(pools_[1].quota_bytes(), 50 * 64u);
  EXPECT_EQ(pools_[2].quota_bytes(), 25 * 64u);
}

}  // namespace
}  // namespace ripplekv
