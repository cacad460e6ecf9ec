#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv_type.h"

namespace ripplekv {

/// What one cached row holds: the key and the value of one position for every KV head of a layer. KV heads may hold
/// different positions in the same row; the positions are kept beside the pages, 4 bytes a head and row.
struct RowFormat {
  KvType type = KvType::kBf16;
  int kv_heads = 1;
  int head_dim = 1;

  size_t row_bytes() const {
    return 2 * static_cast<size_t>(kv_heads) * static_cast<size_t>(head_dim) * KvTypeBytes(type);
  }
  /// The default page: 32 rows, rounded up to a cache line.
  size_t default_page_bytes() const { return (32 * row_bytes() + 63) / 64 * 64; }
  int rows_per_page(size_t page_bytes) const { return static_cast<int>(page_bytes / row_bytes()); }
  /// Pages that `rows` rows take.
  int64_t pages_for(int64_t rows, size_t page_bytes) const {
    const int64_t per_page = rows_per_page(page_bytes);
    return (rows + per_page - 1) / per_page;
  }

  friend bool operator==(const RowFormat&, const RowFormat&) = default;
};

}  // namespace ripplekv
