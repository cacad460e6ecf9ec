#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv_page.h"

namespace ripplekv {

/// Compaction: chosen rows of one layer's contiguous keys and values, per KV head, into pages, each
/// rounded to the types that the pages store (kernels/kv_codec.h). head_dim is at most
/// kDecodeAttentionMaxHeadDim.
struct GatherRowsArgs {
  KvPageLayout layout;
  const void* k =
      nullptr;  // of layout.type; row r of KV head h at (h * kv_head_stride + r * d) elements
  const void* v = nullptr;
  int64_t kv_head_stride = 0;
  int32_t first_position = 0;  // logical position of source row 0
  const int32_t* indices =
      nullptr;  // source rows; of KV head h at indices + h * indices_stride, one per destination
  int64_t indices_stride = 0;         // row. Null: rows 0, 1, 2, ... (nothing is dropped)
  std::byte* const* pages = nullptr;  // the sequence's pages
  int64_t first_row = 0;              // destination row of indices[0]
};

/// Copies list entries [begin, end) of every KV head with their positions.
void GatherRows(const GatherRowsArgs& args, int64_t begin, int64_t end);

/// Writes one row (decode): k and v [kv_heads, d] fp32, rounded once to the types stored.
void StoreRow(const KvPageLayout& layout, std::byte* const* pages, int64_t row, int32_t position,
              const float* k, const float* v);

/// The other way: rows [begin, end) of a sequence to contiguous memory, row r of KV head h at
/// (h * kv_head_stride + r * d) elements of layout.type, rounded to it. positions [kv_heads,
/// positions_stride] may be null.
void ReadRows(const KvPageLayout& layout, const std::byte* const* pages, int64_t begin, int64_t end,
              void* k, void* v, int64_t kv_head_stride, int32_t* positions,
              int64_t positions_stride);

}  // namespace ripplekv
