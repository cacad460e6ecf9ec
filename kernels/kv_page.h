#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "kernels/kv_type.h"

namespace ripplekv {

/// The keys or the values of a page: rows [kv_heads, rows_per_page, row_bytes], and for the
/// quantised types their scales and minima [kv_heads, rows_per_page, param_bytes].
struct KvSide {
  KvRole role = KvRole::kKey;
  KvType type = KvType::kF32;
  size_t row_bytes = 0;
  size_t param_bytes = 0;  // 0: none
  size_t offset = 0;       // in the page
  size_t param_offset = 0;

  bool operator==(const KvSide&) const = default;
};

/// Rows that decode attention reads at once: where they lie, if they all lie in one page.
inline constexpr int kKvBlockRows = 32;

/// How cached rows of one layer lie in a page: keys, values, then the logical position of each row,
/// int32 [kv_heads, rows_per_page]. Each region starts at a multiple of 64 bytes. Row r of a
/// sequence is row r % rows_per_page of its page r / rows_per_page.
struct KvPageLayout {
  /// Of contiguous rows outside of pages, which are stored and read back: kF32 or kBf16.
  KvType type = KvType::kF32;
  int kv_heads = 0;
  int head_dim = 0;
  int rows_per_page = 0;  // 0: not even one row fits
  KvSide k, v;
  size_t position_offset = 0;
  size_t page_bytes = 0;

  /// As many rows as fit into page_bytes; a multiple of kKvBlockRows where that leaves out less
  /// than a fifth of them.
  static KvPageLayout For(KvTypes stored, KvType type, int kv_heads, int head_dim,
                          size_t page_bytes);
  /// Rows are stored in the type they have outside.
  static KvPageLayout For(KvType type, int kv_heads, int head_dim, size_t page_bytes) {
    return For(type, type, kv_heads, head_dim, page_bytes);
  }
  /// The same pages with rows stored in other types: another number of rows.
  KvPageLayout With(KvTypes stored) const {
    return For(stored, type, kv_heads, head_dim, page_bytes);
  }
  /// Contiguous rows, read as one page without positions: row r of KV head h of the keys at
  /// (h * rows + r) * d elements, values from v_offset bytes on.
  static KvPageLayout Contiguous(KvType type, int kv_heads, int head_dim, int rows,
                                 size_t v_offset);
  /// The smallest page (a multiple of 64 bytes) that holds `rows` rows.
  static size_t BytesForRowsPerPage(KvTypes stored, int kv_heads, int head_dim, int rows);
  /// What one row of all KV heads takes: keys, values and positions.
  static constexpr size_t RowBytes(KvTypes stored, int kv_heads, int head_dim) {
    size_t bytes = sizeof(int32_t);
    for (const KvType type : {stored.k, stored.v}) {
      bytes += KvRowBytes(type, head_dim) + KvParamBytes(type, head_dim);
    }
    return static_cast<size_t>(kv_heads) * bytes;
  }
  size_t RowBytes() const { return RowBytes({k.type, v.type}, kv_heads, head_dim); }

  KvTypes stored() const { return {k.type, v.type}; }
  bool operator==(const KvPageLayout&) const = default;

  /// Pages that `rows` rows take.
  int64_t PagesFor(int64_t rows) const { return (rows + rows_per_page - 1) / rows_per_page; }

  /// Byte offset in the page of the key row, the value row, the position of row `row` (in the page)
  /// of a KV head.
  constexpr size_t KeyOffset(int kv_head, int row) const { return RowOffset(k, kv_head, row); }
  constexpr size_t ValueOffset(int kv_head, int row) const { return RowOffset(v, kv_head, row); }
  constexpr size_t PositionOffset(int kv_head, int row) const {
    return position_offset + RowIndex(kv_head, row) * sizeof(int32_t);
  }
  constexpr size_t RowOffset(const KvSide& side, int kv_head, int row) const {
    return side.offset + RowIndex(kv_head, row) * side.row_bytes;
  }
  /// Of the row's scales and minima.
  constexpr size_t ParamOffset(const KvSide& side, int kv_head, int row) const {
    return side.param_offset + RowIndex(kv_head, row) * side.param_bytes;
  }

  /// Rows [from, from + rows) of a KV head, as stored, become rows [to, to + rows) of another page,
  /// or of the same where to <= from or the ranges are apart.
  void CopyRows(const std::byte* from_page, int from, std::byte* to_page, int to, int kv_head,
                int rows) const;

 private:
  constexpr size_t RowIndex(int kv_head, int row) const {
    return static_cast<size_t>(kv_head) * static_cast<size_t>(rows_per_page) +
           static_cast<size_t>(row);
  }
};

}  // namespace ripplekv
