#include "kernels/gather_rows.h"

#include <algorithm>
#include <cstring>

#include "kernels/decode_attention.h"
#include "kernels/kv_codec.h"

namespace ripplekv {
namespace {

constexpr int kMaxHeadDim = kDecodeAttentionMaxHeadDim;

const std::byte* At(const void* base, int64_t bytes) {
  return static_cast<const std::byte*>(base) + bytes;
}
std::byte* At(void* base, int64_t bytes) { return static_cast<std::byte*>(base) + bytes; }

/// One row as the layout stores it; x is of layout.type.
void StoreFrom(const KvPageLayout& layout, const KvSide& side, const std::byte* x, int kv_head,
               int row, std::byte* page) {
  std::byte* to = page + layout.RowOffset(side, kv_head, row);
  if (side.type == layout.type) {
    std::memcpy(to, x, side.row_bytes);
    return;
  }
  float converted[kMaxHeadDim];
  if (layout.type == KvType::kBf16) {
    DecodeKvRow(side.role, KvType::kBf16, x, nullptr, layout.head_dim, converted);
  } else {
    std::memcpy(converted, x, static_cast<size_t>(layout.head_dim) * sizeof(float));
  }
  EncodeKvRow(side.role, side.type, converted, layout.head_dim, to,
              page + layout.ParamOffset(side, kv_head, row));
}

/// The reverse, for `rows` rows.
void ReadTo(const KvPageLayout& layout, const KvSide& side, const std::byte* page, int kv_head,
            int row, int rows, std::byte* x) {
  const size_t bytes = static_cast<size_t>(layout.head_dim) * KvTypeBytes(layout.type);
  if (side.type == layout.type) {
    std::memcpy(x, page + layout.RowOffset(side, kv_head, row), static_cast<size_t>(rows) * bytes);
    return;
  }
  float converted[kMaxHeadDim];
  for (int r = row; r < row + rows; ++r, x += bytes) {
    DecodeKvRow(side.role, side.type, page + layout.RowOffset(side, kv_head, r),
                page + layout.ParamOffset(side, kv_head, r), layout.head_dim, converted);
    EncodeKvRow(side.role, layout.type, converted, layout.head_dim, x, nullptr);
  }
}

/// f(page, row in the page, first row, count) for the runs of [begin, end) that lie in one page.
template <typename F>
void ForRuns(const KvPageLayout& layout, int64_t begin, int64_t end, const F& f) {
  for (int64_t row = begin; row < end;) {
    const int64_t page = row / layout.rows_per_page;
    const int in_page = static_cast<int>(row % layout.rows_per_page);
    const int count =
        static_cast<int>(std::min<int64_t>(end - row, layout.rows_per_page - in_page));
    f(page, in_page, row, count);
    row += count;
  }
}

}  // namespace

void GatherRows(const GatherRowsArgs& args, int64_t begin, int64_t end) {
  const KvPageLayout& layout = args.layout;
  const auto gather = [&](int64_t page, int in_page, int64_t row, int count) {
    std::byte* base = args.pages[page];
    for (int h = 0; h < layout.kv_heads; ++h) {
      for (int i = 0; i < count; ++i) {
        const int64_t entry = row + i - args.first_row;
        const int64_t source =
            args.indices == nullptr ? entry : args.indices[h * args.indices_stride + entry];
        const int64_t offset = (h * args.kv_head_stride + source * layout.head_dim) *
                               static_cast<int64_t>(KvTypeBytes(layout.type));
        StoreFrom(layout, layout.k, At(args.k, offset), h, in_page + i, base);
        StoreFrom(layout, layout.v, At(args.v, offset), h, in_page + i, base);
        const int32_t position = args.first_position + static_cast<int32_t>(source);
        std::memcpy(base + layout.PositionOffset(h, in_page + i), &position, sizeof position);
      }
    }
  };
  ForRuns(layout, args.first_row + begin, args.first_row + end, gather);
}

void StoreRow(const KvPageLayout& layout, std::byte* const* pages, int64_t row, int32_t position,
              const float* k, const float* v) {
  std::byte* base = pages[row / layout.rows_per_page];
  const int in_page = static_cast<int>(row % layout.rows_per_page);
  for (int h = 0; h < layout.kv_heads; ++h) {
    const int d = layout.head_dim;
    EncodeKvRow(KvRole::kKey, layout.k.type, k + h * d, d, base + layout.KeyOffset(h, in_page),
                base + layout.ParamOffset(layout.k, h, in_page));
    EncodeKvRow(KvRole::kValue, layout.v.type, v + h * d, d, base + layout.ValueOffset(h, in_page),
                base + layout.ParamOffset(layout.v, h, in_page));
    std::memcpy(base + layout.PositionOffset(h, in_page), &position, sizeof position);
  }
}

void ReadRows(const KvPageLayout& layout, const std::byte* const* pages, int64_t begin, int64_t end,
              void* k, void* v, int64_t kv_head_stride, int32_t* positions,
              int64_t positions_stride) {
  const int64_t element = static_cast<int64_t>(KvTypeBytes(layout.type));
  ForRuns(layout, begin, end, [&](int64_t page, int in_page, int64_t row, int count) {
    const std::byte* base = pages[page];
    for (int h = 0; h < layout.kv_heads; ++h) {
      const int64_t offset = (h * kv_head_stride + row * layout.head_dim) * element;
      ReadTo(layout, layout.k, base, h, in_page, count, At(k, offset));
      ReadTo(layout, layout.v, base, h, in_page, count, At(v, offset));
      if (positions != nullptr) {
        std::memcpy(positions + h * positions_stride + row,
                    base + layout.PositionOffset(h, in_page),
                    static_cast<size_t>(count) * sizeof(int32_t));
      }
    }
  });
}

}  // namespace ripplekv
