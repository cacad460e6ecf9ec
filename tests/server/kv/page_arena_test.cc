#include "server/kv/page_arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace ripplekv {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<PageArena> MakeArena(size_t pages, size_t prefill = 4096) {
  auto arena = PageArena::Create(
      {.total_bytes = prefill + pages * 128, .page_bytes = 128, .prefill_layer_bytes = prefill});
  EXPECT_TRUE(arena.ok()) << arena.status();
  return *std::move(arena);
}

TEST(PageArenaTest, RefusesWhatCannotWorkAndSaysWhatWould) {
  auto status =
      PageArena::Create({.total_bytes = 4096, .page_bytes = 100, .prefill_layer_bytes = 0})
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("100"));
  status = PageArena::Create({.total_bytes = 1100, .page_bytes = 128, .prefill_layer_bytes = 1000})
               .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  // 1000 rounds up to 1024; with one page of 128 bytes 1152 would do.
  EXPECT_THAT(std::string(status.message()), HasSubstr("at least 1152"));
  auto arena =
      PageArena::Create({.total_bytes = 1152, .page_bytes = 128, .prefill_layer_bytes = 1000});
  ASSERT_TRUE(arena.ok()) << arena.status();
  EXPECT_EQ((*arena)->pages(), 1);
}

TEST(PageArenaTest, PagesAreDistinctAlignedAndApartFromThePrefillLayer) {
  auto arena = MakeArena(50);
  ASSERT_EQ(arena->pages(), 50);
  ASSERT_TRUE(arena->Reserve(50).ok());
  auto layer = arena->AcquirePrefillLayer(4096);
  ASSERT_TRUE(layer.ok());
  std::memset(layer->data(), 0xff, 4096);
  std::vector<PageId> ids;
  for (int i = 0; i < 50; ++i) ids.push_back(arena->Take());
  EXPECT_EQ(std::set<PageId>(ids.begin(), ids.end()).size(), 50u);
  for (PageId id : ids) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(arena->page(id)) % 64, 0u);
    std::memset(arena->page(id), id, 128);
  }
  for (PageId id : ids) {
    for (int i = 0; i < 128; ++i) ASSERT_EQ(static_cast<int>(arena->page(id)[i]), id);
  }
  for (int i = 0; i < 4096; ++i) ASSERT_EQ(static_cast<int>(layer->data()[i]), 0xff);
  for (PageId id : ids) arena->Free(id);
}

TEST(PageArenaTest, FirstPagesLieInARow) {
  auto arena = MakeArena(8);
  ASSERT_TRUE(arena->Reserve(3).ok());
  for (PageId expected = 0; expected < 3; ++expected) EXPECT_EQ(arena->Take(), expected);
  for (PageId id : {2, 1, 0}) arena->Free(id);
  ASSERT_TRUE(arena->Reserve(1).ok());
  EXPECT_EQ(arena->Take(), 0);
  arena->Free(0);
}

TEST(PageArenaTest, PromisesBoundWhatIsAvailable) {
  auto arena = MakeArena(10);
  ASSERT_TRUE(arena->Reserve(7).ok());
  EXPECT_EQ(arena->available_pages(), 3);
  const absl::Status refused = arena->Reserve(4);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("4 pages of 128 bytes wanted, 3 of 10 available"));
  EXPECT_EQ(arena->reserved_pages(), 7);
  const PageId id = arena->Take();
  EXPECT_EQ(arena->used_pages(), 1);
  EXPECT_EQ(arena->reserved_pages(), 6);
  EXPECT_EQ(arena->available_pages(), 3);
  arena->Free(id);
  EXPECT_EQ(arena->available_pages(), 4);
  arena->Unreserve(6);
  EXPECT_EQ(arena->available_pages(), 10);
}

TEST(PageArenaTest, CountsThePrefillLayerByWhatIsUsed) {
  auto arena = MakeArena(10);
  ASSERT_TRUE(arena->Reserve(2).ok());
  const PageId id = arena->Take();
  EXPECT_EQ(arena->used_bytes(), 128u);
  {
    auto layer = arena->AcquirePrefillLayer(1000);
    ASSERT_TRUE(layer.ok());
    EXPECT_EQ(layer->size_bytes(), 1000u);
    EXPECT_EQ(arena->used_bytes(), 1128u);
    EXPECT_EQ(arena->AcquirePrefillLayer(1).status().code(), absl::StatusCode::kResourceExhausted);
    PrefillLayer moved = *std::move(layer);
    EXPECT_EQ(arena->prefill_layer_used_bytes(), 1000u);
    const PageId second = arena->Take();
    EXPECT_EQ(arena->peak_bytes(), 1256u);
    arena->Free(second);
  }
  EXPECT_EQ(arena->used_bytes(), 128u);
  EXPECT_EQ(arena->peak_bytes(), 1256u);
  arena->ResetPeak();
  EXPECT_EQ(arena->peak_bytes(), 128u);
  EXPECT_EQ(arena->AcquirePrefillLayer(4097).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(arena->AcquirePrefillLayer(4096).ok());
  arena->Free(id);
}

}  // namespace
}  // namespace ripplekv
