#include "kernels/gather_rows.h"

#include <gtest/gtest.h>

#include "kernels/kv_codec.h"
#include "tests/kernels/random.h"

namespace ripplekv {
namespace {

struct Pages {
  Pages(const KvPageLayout& layout, int64_t rows)
      : storage(static_cast<size_t>(layout.PagesFor(rows)) * layout.page_bytes, std::byte{0xaa}) {
    for (int64_t p = layout.PagesFor(rows); p-- > 0;) {
      list.push_back(storage.data() + static_cast<size_t>(p) * layout.page_bytes);
    }
  }
  std::vector<std::byte> storage;
  std::vector<std::byte*> list;
};

TEST(GatherRowsTest, PutsEveryHeadsOwnRowsWithTheirPositions) {
  std::mt19937 random(80);
  const int kv_heads = 3, d = 10;
  const int64_t source_rows = 90, stride = source_rows * d + 6;
  for (KvType type : kFloatKvTypes) {
    const size_t bytes = d * KvTypeBytes(type);
    const KvPageLayout layout = KvPageLayout::For(type, kv_heads, d, 2048);
    ASSERT_GT(layout.rows_per_page, 3);
    const KvData k = RandomKv(random, type, static_cast<size_t>(kv_heads * stride));
    const KvData v = RandomKv(random, type, static_cast<size_t>(kv_heads * stride));
    const int64_t count = 41, first_row = 5;
    std::vector<int32_t> indices(static_cast<size_t>(kv_heads * (count + 2)));
    for (int32_t& i : indices) i = static_cast<int32_t>(random() % source_rows);
    for (bool all : {false, true}) {
      Pages pages(layout, first_row + count);
      GatherRowsArgs args;
      args.layout = layout;
      args.k = k.bytes.data();
      args.v = v.bytes.data();
      args.kv_head_stride = stride;
      args.first_position = 1000;
      args.indices = all ? nullptr : indices.data();
      args.indices_stride = count + 2;
      args.pages = pages.list.data();
      args.first_row = first_row;
      GatherRows(args, 17, count);
      GatherRows(args, 0, 17);

      std::vector<std::byte> k_out(static_cast<size_t>(kv_heads * 60) * bytes), v_out = k_out;
      std::vector<int32_t> positions(static_cast<size_t>(kv_heads * 60), -1);
      ReadRows(layout, pages.list.data(), first_row, first_row + count, k_out.data(), v_out.data(),
               60 * d, positions.data(), 60);
      for (int h = 0; h < kv_heads; ++h) {
        for (int64_t i = 0; i < count; ++i) {
          const int64_t source = all ? i : indices[static_cast<size_t>(h * (count + 2) + i)];
          const int64_t row = first_row + i;
          // Where the layout says, and what ReadRows finds.
          const std::byte* page = pages.list[static_cast<size_t>(row / layout.rows_per_page)];
          const int in_page = static_cast<int>(row % layout.rows_per_page);
          const std::byte* want_k =
              &k.bytes[static_cast<size_t>(h * stride + source * d) * KvTypeBytes(type)];
          const std::byte* want_v =
              &v.bytes[static_cast<size_t>(h * stride + source * d) * KvTypeBytes(type)];
          EXPECT_EQ(std::memcmp(page + layout.KeyOffset(h, in_page), want_k, bytes), 0);
          EXPECT_EQ(std::memcmp(page + layout.ValueOffset(h, in_page), want_v, bytes), 0);
          const size_t at = static_cast<size_t>(h * 60 + row);
          EXPECT_EQ(std::memcmp(&k_out[at * bytes], want_k, bytes), 0);
          EXPECT_EQ(std::memcmp(&v_out[at * bytes], want_v, bytes), 0);
          EXPECT_EQ(positions[at], 1000 + source);
        }
        // Rows before the first one belong to somebody else.
        for (int r = 0; r < first_row; ++r) {
          EXPECT_EQ(pages.list[0][layout.KeyOffset(h, r)], std::byte{0xaa});
          EXPECT_EQ(pages.list[0][layout.PositionOffset(h, r)], std::byte{0xaa});
        }
      }
    }
  }
}

// What is gathered, added by decoding and read back is the codec's, for every pair of types, and so
// is what has moved within and between pages.
TEST(GatherRowsTest, EveryPairOfTypesStoresTheCodecsRows) {
  std::mt19937 random(82);
  const int kv_heads = 2, d = 40;
  const int64_t rows = 30, stride = rows * d;
  const auto in_type = [](KvType type, const float* x, int n) {
    std::vector<float> rounded(static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) {
      rounded[static_cast<size_t>(i)] =
          type == KvType::kBf16 ? Bf16ToFloat(FloatToBf16(x[i])) : x[i];
    }
    return rounded;
  };
  const auto stored = [](KvRole role, KvType type, const float* x) {
    std::vector<std::byte> row(KvRowBytes(type, d)), params(KvParamBytes(type, d));
    std::vector<float> read(d);
    EncodeKvRow(role, type, x, d, row.data(), params.data());
    DecodeKvRow(role, type, row.data(), params.data(), d, read.data());
    return read;
  };
  for (KvType type : kFloatKvTypes) {
    const KvData k = RandomKv(random, type, static_cast<size_t>(kv_heads * stride));
    const KvData v = RandomKv(random, type, static_cast<size_t>(kv_heads * stride));
    for (KvType stored_k : kKvTypes) {
      for (KvType stored_v : kKvTypes) {
        const KvTypes types(stored_k, stored_v);
        const KvPageLayout layout = KvPageLayout::For(
            types, type, kv_heads, d, KvPageLayout::BytesForRowsPerPage(types, kv_heads, d, 7));
        Pages pages(layout, rows + 1);
        GatherRowsArgs args;
        args.layout = layout;
        args.k = k.bytes.data();
        args.v = v.bytes.data();
        args.kv_head_stride = stride;
        args.pages = pages.list.data();
        GatherRows(args, 0, rows);
        const std::vector<float> new_k = RandomFloats(random, kv_heads * d);
        const std::vector<float> new_v = RandomFloats(random, kv_heads * d);
        StoreRow(layout, pages.list.data(), rows, 77, new_k.data(), new_v.data());
        // Row 9 becomes row 2, on another page; 30 becomes 3.
        for (int h = 0; h < kv_heads; ++h) {
          layout.CopyRows(pages.list[1], 2, pages.list[0], 2, h, 1);
          layout.CopyRows(pages.list[4], 2, pages.list[0], 3, h, 1);
        }
        const size_t bytes = KvTypeBytes(type);
        std::vector<std::byte> k_out(static_cast<size_t>(kv_heads * (stride + d)) * bytes);
        std::vector<std::byte> v_out = k_out;
        std::vector<int32_t> positions(kv_heads * (rows + 1));
        ReadRows(layout, pages.list.data(), 0, rows + 1, k_out.data(), v_out.data(), stride + d,
                 positions.data(), rows + 1);
        for (int h = 0; h < kv_heads; ++h) {
          for (int64_t r = 0; r <= rows; ++r) {
            const int64_t source = r == 2 ? 9 : r == 3 ? rows : r;
            EXPECT_EQ(positions[static_cast<size_t>(h * (rows + 1) + r)],
                      source == rows ? 77 : source);
            for (bool key : {true, false}) {
              std::vector<float> x(d);
              for (int c = 0; c < d; ++c) {
                const auto i = static_cast<size_t>(h * stride + source * d + c);
                const auto added = static_cast<size_t>(h * d + c);
                x[static_cast<size_t>(c)] = source == rows
                                                ? (key ? new_k : new_v)[added]
                                                : static_cast<float>((key ? k : v).values[i]);
              }
              const std::vector<float> read =
                  stored(key ? KvRole::kKey : KvRole::kValue, key ? stored_k : stored_v, x.data());
              const std::vector<float> want = in_type(type, read.data(), d);
              const std::byte* got = (key ? k_out : v_out).data() +
                                     static_cast<size_t>((h * (rows + 1) + r) * d) * bytes;
              std::vector<float> got_values(d);
              DecodeKvRow(KvRole::kKey, type, got, nullptr, d, got_values.data());
              ASSERT_EQ(got_values, want) << KvTypeName(key ? stored_k : stored_v) << " row " << r;
            }
          }
        }
      }
    }
  }
}

TEST(GatherRowsTest, StoresOneRow) {
  std::mt19937 random(81);
  const int kv_heads = 2, d = 7;
  const std::vector<float> k = RandomFloats(random, kv_heads * d);
  const std::vector<float> v = RandomFloats(random, kv_heads * d);
  for (KvType type : kFloatKvTypes) {
    const KvPageLayout layout = KvPageLayout::For(type, kv_heads, d, 512);
    const int64_t row = layout.rows_per_page + 1;
    Pages pages(layout, row + 1);
    StoreRow(layout, pages.list.data(), row, 4242, k.data(), v.data());
    for (int h = 0; h < kv_heads; ++h) {
      for (int c = 0; c < d; ++c) {
        const auto read = [&](size_t offset) {
          const std::byte* p = pages.list[1] + offset + static_cast<size_t>(c) * KvTypeBytes(type);
          if (type == KvType::kBf16) {
            uint16_t x;
            std::memcpy(&x, p, 2);
            return Bf16ToFloat(x);
          }
          float x;
          std::memcpy(&x, p, 4);
          return x;
        };
        const auto rounded = [&](float x) {
          return type == KvType::kBf16 ? Bf16ToFloat(FloatToBf16(x)) : x;
        };
        EXPECT_EQ(read(layout.KeyOffset(h, 1)), rounded(k[static_cast<size_t>(h * d + c)]));
        EXPECT_EQ(read(layout.ValueOffset(h, 1)), rounded(v[static_cast<size_t>(h * d + c)]));
      }
      int32_t position;
      std::memcpy(&position, pages.list[1] + layout.PositionOffset(h, 1), 4);
      EXPECT_EQ(position, 4242);
    }
  }
}

}  // namespace
}  // namespace ripplekv
