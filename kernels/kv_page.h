#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv_type.h"

namespace ripplekv {

/// How cached rows of one layer lie in a page: keys [kv_heads, rows_per_page, d], values likewise,
/// then the logical position of each row, int32 [kv_heads, rows_per_page]. Each region starts at a
/// multiple of 64 bytes. Row r of a sequence is row r % rows_per_page of its page r /
/// rows_per_page.
struct KvPageLayout {
  KvType type = KvType::kF32;
  int kv_heads = 0;
  int head_dim = 0;
  int rows_per_page = 0;  // 0: not even one row fits
  size_t k_offset = 0;
  size_t v_offset = 0;
  size_t position_offset = 0;
  size_t page_bytes = 0;

  /// As many rows as fit into page_bytes.
  static KvPageLayout For(KvType type, int kv_heads, int head_dim, size_t page_bytes);
  /// The smallest page (a multiple of 64 bytes) that holds `rows` rows.
  static size_t BytesForRowsPerPage(KvType type, int kv_heads, int head_dim, int rows);
  /// What one row of all KV heads takes: keys, values and positions.
  static size_t RowBytes(KvType type, int kv_heads, int head_dim) {
    return static_cast<size_t>(kv_heads) *
           (2 * static_cast<size_t>(head_dim) * KvTypeBytes(type) + sizeof(int32_t));
  }
  size_t RowBytes() const { return RowBytes(type, kv_heads, head_dim); }

  /// Pages that `rows` rows take.
  int64_t PagesFor(int64_t rows) const { return (rows + rows_per_page - 1) / rows_per_page; }

  /// Byte offset in the page of the key row, the value row, the position of row `row` (in the page)
  /// of a KV head.
  constexpr size_t KeyOffset(int kv_head, int row) const {
    return k_offset + ElementOffset(kv_head, row);
  }
  constexpr size_t ValueOffset(int kv_head, int row) const {
    return v_offset + ElementOffset(kv_head, row);
  }
  constexpr size_t PositionOffset(int kv_head, int row) const {
    return position_offset + RowIndex(kv_head, row) * sizeof(int32_t);
  }

 private:
  constexpr size_t RowIndex(int kv_head, int row) const {
    return static_cast<size_t>(kv_head) * static_cast<size_t>(rows_per_page) +
           static_cast<size_t>(row);
  }
  constexpr size_t ElementOffset(int kv_head, int row) const {
    return RowIndex(kv_head, row) * static_cast<size_t>(head_dim) * KvTypeBytes(type);
  }
};

}  // namespace ripplekv
