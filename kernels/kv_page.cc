#include "kernels/kv_page.h"

namespace ripplekv {
namespace {

constexpr size_t kAlignment = 64;

size_t Align(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

size_t DataBytes(KvType type, int kv_heads, int head_dim, size_t rows) {
  return Align(static_cast<size_t>(kv_heads) * rows * static_cast<size_t>(head_dim) *
               KvTypeBytes(type));
}

size_t PageBytes(KvType type, int kv_heads, int head_dim, size_t rows) {
  return 2 * DataBytes(type, kv_heads, head_dim, rows) +
         static_cast<size_t>(kv_heads) * rows * sizeof(int32_t);
}

}  // namespace

KvPageLayout KvPageLayout::For(KvType type, int kv_heads, int head_dim, size_t page_bytes) {
  KvPageLayout layout;
  layout.type = type;
  layout.kv_heads = kv_heads;
  layout.head_dim = head_dim;
  layout.page_bytes = page_bytes;
  size_t rows = page_bytes / RowBytes(type, kv_heads, head_dim);
  while (rows > 0 && PageBytes(type, kv_heads, head_dim, rows) > page_bytes) --rows;
  layout.rows_per_page = static_cast<int>(rows);
  layout.v_offset = DataBytes(type, kv_heads, head_dim, rows);
  layout.position_offset = 2 * layout.v_offset;
  return layout;
}

size_t KvPageLayout::BytesForRowsPerPage(KvType type, int kv_heads, int head_dim, int rows) {
  return Align(PageBytes(type, kv_heads, head_dim, static_cast<size_t>(rows)));
}

}  // namespace ripplekv
