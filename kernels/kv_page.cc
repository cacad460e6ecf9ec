#include "kernels/kv_page.h"

#include <cstring>
#include <initializer_list>

namespace ripplekv {
namespace {

constexpr size_t kAlignment = 64;

size_t Align(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// Places the regions of a page of `rows` rows; page_bytes becomes what they take.
void Place(KvPageLayout& layout, int rows) {
  const size_t all = static_cast<size_t>(layout.kv_heads) * static_cast<size_t>(rows);
  size_t end = 0;
  const auto place = [&](size_t bytes) {
    const size_t begin = end;
    end = Align(begin + bytes);
    return begin;
  };
  for (KvSide* side : {&layout.k, &layout.v}) {
    side->offset = place(all * side->row_bytes);
    side->param_offset = place(all * side->param_bytes);
  }
  layout.position_offset = end;
  layout.page_bytes = end + all * sizeof(int32_t);
  layout.rows_per_page = rows;
}

KvSide Side(KvRole role, KvType type, int head_dim) {
  KvSide side;
  side.role = role;
  side.type = type;
  side.row_bytes = KvRowBytes(type, head_dim);
  side.param_bytes = KvParamBytes(type, head_dim);
  return side;
}

KvPageLayout Empty(KvTypes stored, KvType type, int kv_heads, int head_dim) {
  KvPageLayout layout;
  layout.type = type;
  layout.kv_heads = kv_heads;
  layout.head_dim = head_dim;
  layout.k = Side(KvRole::kKey, stored.k, head_dim);
  layout.v = Side(KvRole::kValue, stored.v, head_dim);
  return layout;
}

}  // namespace

KvPageLayout KvPageLayout::For(KvTypes stored, KvType type, int kv_heads, int head_dim,
                               size_t page_bytes) {
  KvPageLayout layout = Empty(stored, type, kv_heads, head_dim);
  int rows = static_cast<int>(page_bytes / layout.RowBytes());
  Place(layout, rows);
  while (rows > 0 && layout.page_bytes > page_bytes) Place(layout, --rows);
  const int whole = rows / kKvBlockRows * kKvBlockRows;
  if ((rows - whole) * 5 < rows) Place(layout, whole);
  layout.page_bytes = page_bytes;
  return layout;
}

KvPageLayout KvPageLayout::Contiguous(KvType type, int kv_heads, int head_dim, int rows,
                                      size_t v_offset) {
  KvPageLayout layout = Empty(type, type, kv_heads, head_dim);
  layout.rows_per_page = rows;
  layout.v.offset = v_offset;
  return layout;
}

size_t KvPageLayout::BytesForRowsPerPage(KvTypes stored, int kv_heads, int head_dim, int rows) {
  KvPageLayout layout = Empty(stored, KvType::kF32, kv_heads, head_dim);
  Place(layout, rows);
  return Align(layout.page_bytes);
}

void KvPageLayout::CopyRows(const std::byte* from_page, int from, std::byte* to_page, int to,
                            int kv_head, int rows) const {
  const auto n = static_cast<size_t>(rows);
  for (const KvSide* side : {&k, &v}) {
    std::memmove(to_page + RowOffset(*side, kv_head, to),
                 from_page + RowOffset(*side, kv_head, from), n * side->row_bytes);
    std::memmove(to_page + ParamOffset(*side, kv_head, to),
                 from_page + ParamOffset(*side, kv_head, from), n * side->param_bytes);
  }
  std::memmove(to_page + PositionOffset(kv_head, to), from_page + PositionOffset(kv_head, from),
               n * sizeof(int32_t));
}

}  // namespace ripplekv
