#include "kernels/kv_page.h"

#include <gtest/gtest.h>

#include <vector>

namespace ripplekv {
namespace {

TEST(KvPageTest, HoldsAsManyRowsAsFitWithoutOverlap) {
  for (KvType type : kFloatKvTypes) {
    for (int kv_heads : {1, 3, 8}) {
      for (int d : {2, 20, 64, 128}) {
        for (size_t bytes : {64, 1000, 4096, 16384, 65536}) {
          const KvPageLayout l = KvPageLayout::For(type, kv_heads, d, bytes);
          EXPECT_EQ(l.page_bytes, bytes);
          const size_t data =
              static_cast<size_t>(kv_heads) * l.rows_per_page * d * KvTypeBytes(type);
          EXPECT_EQ(l.k.offset, 0u);
          EXPECT_GE(l.v.offset, l.k.offset + data);
          EXPECT_GE(l.position_offset, l.v.offset + data);
          EXPECT_LE(l.position_offset + static_cast<size_t>(kv_heads) * l.rows_per_page * 4, bytes);
          EXPECT_EQ(l.v.offset % 64, 0u);
          EXPECT_EQ(l.position_offset % 64, 0u);
          if (l.rows_per_page > 0) {
            EXPECT_EQ(l.KeyOffset(kv_heads - 1, l.rows_per_page - 1) + d * KvTypeBytes(type),
                      l.k.offset + data);
            EXPECT_EQ(l.ValueOffset(0, 0), l.v.offset);
            EXPECT_EQ(
                l.PositionOffset(kv_heads - 1, 0),
                l.position_offset + 4 * (kv_heads - 1) * static_cast<size_t>(l.rows_per_page));
          }
          // One row more, or one block more, does not fit.
          const int more = l.rows_per_page > 0 && l.rows_per_page % kKvBlockRows == 0
                               ? l.rows_per_page + kKvBlockRows
                               : l.rows_per_page + 1;
          EXPECT_GT(KvPageLayout::BytesForRowsPerPage(type, kv_heads, d, more) + 63, bytes);
        }
        for (int rows : {1, 15, 16, 31, 32, 41, 96, 128}) {
          const size_t bytes = KvPageLayout::BytesForRowsPerPage(type, kv_heads, d, rows);
          EXPECT_EQ(bytes % 64, 0u);
          EXPECT_GE(KvPageLayout::For(type, kv_heads, d, bytes).rows_per_page, rows);
          EXPECT_LT(KvPageLayout::For(type, kv_heads, d, bytes - 64).rows_per_page, rows);
        }
      }
    }
  }
}

TEST(KvPageTest, BlocksAreWholeUnlessThatLeavesOutAFifth) {
  const auto fit = [](int rows) {
    const size_t bytes = KvPageLayout::BytesForRowsPerPage(KvType::kF32, 1, 16, rows);
    return KvPageLayout::For(KvType::kF32, 1, 16, bytes).rows_per_page;
  };
  for (int rows = 1; rows <= 300; ++rows) {
    const int whole = rows / 32 * 32;
    EXPECT_EQ(fit(rows), (rows - whole) * 5 < rows ? whole : rows) << rows;
  }
  // A page for plans that choose types at SmolLM2's shape.
  const size_t bytes = KvPageLayout::BytesForRowsPerPage(KvType::kInt4, 3, 64, 128);
  const auto rows = [&](KvTypes types) {
    return KvPageLayout::For(types, KvType::kBf16, 3, 64, bytes).rows_per_page;
  };
  EXPECT_EQ(rows(KvType::kInt4), 128);
  EXPECT_EQ(rows({KvType::kInt8, KvType::kInt4}), 96);
  EXPECT_EQ(rows(KvType::kInt8), 64);
  EXPECT_EQ(rows(KvType::kBf16), 41);
}

TEST(KvPageTest, RegionsOfEveryPairOfTypesAreApart) {
  for (KvType k : kKvTypes) {
    for (KvType v : kKvTypes) {
      for (int d : {6, 64, 80}) {
        const int kv_heads = 3, rows = 11;
        const size_t bytes = KvPageLayout::BytesForRowsPerPage({k, v}, kv_heads, d, rows);
        const KvPageLayout l = KvPageLayout::For({k, v}, KvType::kBf16, kv_heads, d, bytes);
        ASSERT_GE(l.rows_per_page, rows);
        EXPECT_EQ(l.type, KvType::kBf16);
        EXPECT_EQ(l.stored(), KvTypes(k, v));
        std::vector<int> owner(bytes, 0);
        const auto own = [&](size_t begin, size_t size, int who) {
          ASSERT_LE(begin + size, bytes);
          for (size_t i = begin; i < begin + size; ++i) {
            ASSERT_EQ(owner[i], 0) << "byte " << i;
            owner[i] = who;
          }
        };
        size_t used = 0;
        for (int h = 0; h < kv_heads; ++h) {
          for (int r = 0; r < l.rows_per_page; ++r) {
            own(l.KeyOffset(h, r), KvRowBytes(k, d), 1);
            own(l.ParamOffset(l.k, h, r), KvParamBytes(k, d), 2);
            own(l.ValueOffset(h, r), KvRowBytes(v, d), 3);
            own(l.ParamOffset(l.v, h, r), KvParamBytes(v, d), 4);
            own(l.PositionOffset(h, r), 4, 5);
          }
        }
        for (int who : owner) used += who != 0;
        EXPECT_EQ(used, l.RowBytes() * static_cast<size_t>(l.rows_per_page));
        for (size_t offset :
             {l.k.offset, l.k.param_offset, l.v.offset, l.v.param_offset, l.position_offset}) {
          EXPECT_EQ(offset % 64, 0u);
        }
      }
    }
  }
}

TEST(KvPageTest, RowBytesAndPages) {
  const KvPageLayout l = KvPageLayout::For(KvType::kBf16, 3, 64, 16384);
  EXPECT_EQ(l.RowBytes(), 3u * (2 * 64 * 2 + 4));
  const auto row_bytes = [](KvTypes types) { return KvPageLayout::RowBytes(types, 3, 64); };
  EXPECT_EQ(row_bytes(KvType::kInt8), 3u * (2 * (64 + 4) + 4));
  EXPECT_EQ(row_bytes(KvType::kInt4), 3u * (2 * (32 + 8) + 4));
  EXPECT_EQ(row_bytes({KvType::kInt8, KvType::kInt4}), 3u * (68 + 40 + 4));
  EXPECT_EQ(l.rows_per_page, 21);  // 21 * 780 = 16380
  EXPECT_EQ(l.PagesFor(0), 0);
  EXPECT_EQ(l.PagesFor(1), 1);
  EXPECT_EQ(l.PagesFor(21), 1);
  EXPECT_EQ(l.PagesFor(22), 2);
}

}  // namespace
}  // namespace ripplekv
