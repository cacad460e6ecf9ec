#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/decode_attention.h"
#include "server/kv/layer_pool.h"
#include "server/kv/row_format.h"

namespace ripplekv {

/// One sequence's cached rows: per layer a page table, the logical position of every row and KV head, and the pages that
/// are still promised to it. Everything goes back to the pools when it dies. The pools must outlive it.
class SequenceCache {
 public:
  /// Promises pages for capacity_rows[l] rows in every layer, or in none (RESOURCE_EXHAUSTED, pools as before).
  static absl::StatusOr<SequenceCache> Reserve(absl::Span<LayerPool> pools, const RowFormat& format,
                                               absl::Span<const int64_t> capacity_rows);
  SequenceCache(SequenceCache&&) noexcept = default;
  SequenceCache& operator=(SequenceCache&& other) noexcept;
  ~SequenceCache();

  /// Fills an empty layer from full rows: row i of KV head h is position indices[h][i], its key at
  /// k + (h * kv_head_stride + position * d) elements of the row format, its value likewise. indices: one list a KV head,
  /// all equally long (at most the capacity), each strictly ascending.
  absl::Status Compact(int layer, const void* k, const void* v, int64_t kv_head_stride,
                       absl::Span<const std::vector<int32_t>> indices);
  /// The same for all of the rows 0 ... rows - 1, in every KV head.
  absl::Status StoreAll(int layer, const void* k, const void* v, int64_t kv_head_stride, int64_t rows);

  /// Adds one row: k and v [kv_heads, d] fp32, converted to the row format (round to nearest even). RESOURCE_EXHAUSTED
  /// beyond the capacity: admission should have prevented that.
  absl::Status AppendRow(int layer, const float* k, const float* v, int32_t position);

  /// What DecodeAttention reads; valid until the next change of the layer.
  PagedSequence View(int layer) const;
  const KvPageLayout& layout() const { return layout_; }
  const RowFormat& format() const { return format_; }

  int layers() const { return static_cast<int>(layers_.size()); }
  int64_t rows(int layer) const { return layers_[static_cast<size_t>(layer)].rows; }
  int64_t capacity(int layer) const { return layers_[static_cast<size_t>(layer)].capacity; }
  int64_t pages(int layer) const {
    return static_cast<int64_t>(layers_[static_cast<size_t>(layer)].pages.size());
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
  /// d elements of the row format.
  const std::byte* KeyRow(int layer, int kv_head, int64_t row) const;
  const std::byte* ValueRow(int layer, int kv_head, int64_t row) const;

 private:
  struct Layer {
    LayerPool* pool = nullptr;
    PageReservation reservation;
    std::vector<PageId> table;
    std::vector<const std::byte*> pages;            // the table as addresses
    std::vector<std::vector<int32_t>> positions;    // [kv_heads][rows]
    int64_t rows = 0;
    int64_t capacity = 0;
  };
  SequenceCache() = default;
  void Release();
  absl::Status Grow(Layer& layer, int64_t rows);

  RowFormat format_;
  KvPageLayout layout_;
  std::vector<Layer> layers_;
};

}  // namespace ripplekv
