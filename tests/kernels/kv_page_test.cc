#include "kernels/kv_page.h"

#include <gtest/gtest.h>

namespace ripplekv {
namespace {

TEST(KvPageTest, HoldsAsManyRowsAsFitWithoutOverlap) {
  for (KvType type : kKvTypes) {
    for (int kv_heads : {1, 3, 8}) {
      for (int d : {2, 20, 64, 128}) {
        for (size_t bytes : {64, 1000, 4096, 16384, 65536}) {
          const KvPageLayout l = KvPageLayout::For(type, kv_heads, d, bytes);
          EXPECT_EQ(l.page_bytes, bytes);
          const size_t data =
              static_cast<size_t>(kv_heads) * l.rows_per_page * d * KvTypeBytes(type);
          EXPECT_EQ(l.k_offset, 0u);
          EXPECT_GE(l.v_offset, l.k_offset + data);
          EXPECT_GE(l.position_offset, l.v_offset + data);
          EXPECT_LE(l.position_offset + static_cast<size_t>(kv_heads) * l.rows_per_page * 4, bytes);
          EXPECT_EQ(l.v_offset % 64, 0u);
          EXPECT_EQ(l.position_offset % 64, 0u);
          if (l.rows_per_page > 0) {
            EXPECT_EQ(l.KeyOffset(kv_heads - 1, l.rows_per_page - 1) + d * KvTypeBytes(type),
                      l.k_offset + data);
            EXPECT_EQ(l.ValueOffset(0, 0), l.v_offset);
            EXPECT_EQ(
                l.PositionOffset(kv_heads - 1, 0),
                l.position_offset + 4 * (kv_heads - 1) * static_cast<size_t>(l.rows_per_page));
          }
          // One row more does not fit.
          EXPECT_GT(KvPageLayout::BytesForRowsPerPage(type, kv_heads, d, l.rows_per_page + 1) + 63,
                    bytes);
        }
        for (int rows : {1, 15, 16, 100}) {
          const size_t bytes = KvPageLayout::BytesForRowsPerPage(type, kv_heads, d, rows);
          EXPECT_EQ(bytes % 64, 0u);
          EXPECT_GE(KvPageLayout::For(type, kv_heads, d, bytes).rows_per_page, rows);
          EXPECT_LT(KvPageLayout::For(type, kv_heads, d, bytes - 64).rows_per_page, rows);
        }
      }
    }
  }
}

TEST(KvPageTest, RowBytesAndPages) {
  const KvPageLayout l = KvPageLayout::For(KvType::kBf16, 3, 64, 16384);
  EXPECT_EQ(l.RowBytes(), 3u * (2 * 64 * 2 + 4));
  EXPECT_EQ(l.rows_per_page, 21);  // 21 * 780 = 16380
  EXPECT_EQ(l.PagesFor(0), 0);
  EXPECT_EQ(l.PagesFor(1), 1);
  EXPECT_EQ(l.PagesFor(21), 1);
  EXPECT_EQ(l.PagesFor(22), 2);
}

}  // namespace
}  // namespace ripplekv
