#include "kernels/gather_rows.h"

#include <algorithm>
#include <cstring>

#include "kernels/bf16.h"

namespace ripplekv {
namespace {

const std::byte* At(const void* base, int64_t bytes) {
  return static_cast<const std::byte*>(base) + bytes;
}
std::byte* At(void* base, int64_t bytes) { return static_cast<std::byte*>(base) + bytes; }

void StoreElements(KvType type, const float* from, int n, std::byte* to) {
  if (type == KvType::kF32) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  for (int i = 0; i < n; ++i) {
    const uint16_t rounded = FloatToBf16(from[i]);
    std::memcpy(to + i * sizeof rounded, &rounded, sizeof rounded);
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
  const size_t bytes = static_cast<size_t>(layout.head_dim) * KvTypeBytes(layout.type);
  const auto gather = [&](int64_t page, int in_page, int64_t row, int count) {
    std::byte* base = args.pages[page];
    for (int h = 0; h < layout.kv_heads; ++h) {
      for (int i = 0; i < count; ++i) {
        const int64_t entry = row + i - args.first_row;
        const int64_t source =
            args.indices == nullptr ? entry : args.indices[h * args.indices_stride + entry];
        const int64_t offset = (h * args.kv_head_stride + source * layout.head_dim) *
                               static_cast<int64_t>(KvTypeBytes(layout.type));
        std::memcpy(base + layout.KeyOffset(h, in_page + i), At(args.k, offset), bytes);
        std::memcpy(base + layout.ValueOffset(h, in_page + i), At(args.v, offset), bytes);
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
    StoreElements(layout.type, k + h * layout.head_dim, layout.head_dim,
                  base + layout.KeyOffset(h, in_page));
    StoreElements(layout.type, v + h * layout.head_dim, layout.head_dim,
                  base + layout.ValueOffset(h, in_page));
    std::memcpy(base + layout.PositionOffset(h, in_page), &position, sizeof position);
  }
}

void ReadRows(const KvPageLayout& layout, const std::byte* const* pages, int64_t begin, int64_t end,
              void* k, void* v, int64_t kv_head_stride, int32_t* positions,
              int64_t positions_stride) {
  const int64_t element = static_cast<int64_t>(KvTypeBytes(layout.type));
  ForRuns(layout, begin, end, [&](int64_t page, int in_page, int64_t row, int count) {
    const std::byte* base = pages[page];
    const size_t bytes = static_cast<size_t>(count * layout.head_dim * element);
    for (int h = 0; h < layout.kv_heads; ++h) {
      const int64_t offset = (h * kv_head_stride + row * layout.head_dim) * element;
      std::memcpy(At(k, offset), base + layout.KeyOffset(h, in_page), bytes);
      std::memcpy(At(v, offset), base + layout.ValueOffset(h, in_page), bytes);
      if (positions != nullptr) {
        std::memcpy(positions + h * positions_stride + row,
                    base + layout.PositionOffset(h, in_page),
                    static_cast<size_t>(count) * sizeof(int32_t));
      }
    }
  });
}

}  // namespace ripplekv
