#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/decode_attention.h"
#include "kernels/kv_page.h"
#include "server/kv/layer_pool.h"

namespace ripplekv {

/// One sequence's cached rows: per layer a page table and the pages that are still promised to it.
/// A page holds keys, values and the logical position of every row and KV head. Everything goes
/// back to the pools when it dies. The pools must outlive it.
class SequenceCache {
 public:
  /// Promises pages for capacity_rows[l] rows in every layer, or in none (RESOURCE_EXHAUSTED, pools
  /// as before).
  static absl::StatusOr<SequenceCache> Reserve(absl::Span<LayerPool> pools,
                                               const KvPageLayout& layout,
                                               absl::Span<const int64_t> capacity_rows);
  SequenceCache(SequenceCache&&) noexcept = default;
  SequenceCache& operator=(SequenceCache&& other) noexcept;
  ~SequenceCache();

  /// Fills an empty layer from full rows: row i of KV head h is position indices[h * rows + i], its
  /// key at k + (h * kv_head_stride + position * d) elements of the layout's type, its value
  /// likewise. indices: [kv_heads, rows], each head's strictly ascending. RESOURCE_EXHAUSTED beyond
  /// the capacity: admission should have prevented that.
  absl::Status Compact(int layer, const void* k, const void* v, int64_t kv_head_stride,
                       absl::Span<const int32_t> indices, int64_t rows);
  /// The same for all of the rows 0 ... rows - 1, in every KV head.
  absl::Status StoreAll(int layer, const void* k, const void* v, int64_t kv_head_stride,
                        int64_t rows);

  /// Adds one row: k and v [kv_heads, d] fp32, rounded to the layout's type. RESOURCE_EXHAUSTED
  /// beyond the capacity.
  absl::Status AppendRow(int layer, const float* k, const float* v, int32_t position);

  /// What DecodeAttention reads; valid until the next change of the layer.
  PagedSequence View(int layer) const;
  const KvPageLayout& layout() const { return layout_; }

  int layers() const { return static_cast<int>(layers_.size()); }
  int64_t rows(int layer) const { return layers_[static_cast<size_t>(layer)].rows; }
  int64_t capacity(int layer) const { return layers_[static_cast<size_t>(layer)].capacity; }
  int64_t pages(int layer) const {
    return static_cast<int64_t>(layers_[static_cast<size_t>(layer)].table.size());
  }
  const std::vector<PageId>& page_table(int layer) const {
    return layers_[static_cast<size_t>(layer)].table;
  }
  const PageReservation& reservation(int layer) const {
    return layers_[static_cast<size_t>(layer)].reservation;
  }
  /// Bytes of the pages that the layer's rows take.
  size_t bytes(int layer) const;
  /// Bytes of all layers.
  size_t bytes() const;

  int32_t RowPosition(int layer, int kv_head, int64_t row) const;
  /// d elements of the layout's type.
  const std::byte* KeyRow(int layer, int kv_head, int64_t row) const;
  const std::byte* ValueRow(int layer, int kv_head, int64_t row) const;

 private:
  struct Layer {
    LayerPool* pool = nullptr;
    PageReservation reservation;
    std::vector<PageId> table;
    std::vector<std::byte*> pages;  // the table as addresses
    int64_t rows = 0;
    int64_t capacity = 0;
  };
  SequenceCache() = default;
  void Release();
  absl::Status Fill(int layer, const void* k, const void* v, int64_t kv_head_stride,
                    const int32_t* indices, int64_t rows);
  // Takes promised pages until the table covers `rows` rows.
  absl::Status Grow(int layer, int64_t rows);
  const std::byte* Page(int layer, int64_t row) const;

  KvPageLayout layout_;
  std::vector<Layer> layers_;
};

}  // namespace ripplekv
