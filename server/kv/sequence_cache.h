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
#include "server/kv/row_mass.h"

namespace ripplekv {

/// One sequence's cached rows: per layer a page table, the pages that are still promised to it and
/// how rows lie in them, so that layers may store them in different types. A page holds keys,
/// values and the logical position of every row and KV head. Everything goes back to the pools when
/// it dies. The pools must outlive it.
///
/// A sequence may go on after another one (ReserveOver). Its first rows, the base rows, are then
/// that one's and never change; the pages that they fill are shared: in its page table, but not its
/// own, neither counted nor freed with it.
class SequenceCache {
 public:
  /// Promises pages for capacity_rows[l] rows of layouts[l] in every layer, or in none
  /// (RESOURCE_EXHAUSTED, pools as before). The layouts are of the arena's pages and differ in the
  /// types stored only.
  static absl::StatusOr<SequenceCache> Reserve(absl::Span<LayerPool> pools,
                                               absl::Span<const KvPageLayout> layouts,
                                               absl::Span<const int64_t> capacity_rows);
  /// One layout for every layer.
  static absl::StatusOr<SequenceCache> Reserve(absl::Span<LayerPool> pools,
                                               const KvPageLayout& layout,
                                               absl::Span<const int64_t> capacity_rows) {
    return Reserve(pools, std::vector<KvPageLayout>(pools.size(), layout), capacity_rows);
  }
  /// A sequence that goes on after all rows of `base`, which must not change and must outlive it;
  /// its layouts are base's.
  /// capacity_rows[l] (at least base's rows) counts base's rows too, but only pages of its own are
  /// promised, in every layer or in none (RESOURCE_EXHAUSTED, pools as before). The rows of base's
  /// partly filled last page are copied into the first own page.
  static absl::StatusOr<SequenceCache> ReserveOver(const SequenceCache& base,
                                                   absl::Span<LayerPool> pools,
                                                   absl::Span<const int64_t> capacity_rows);
  /// Pages of its own that a layer takes with this capacity over so many base rows.
  static int64_t OwnPagesFor(const KvPageLayout& layout, int64_t base_rows, int64_t capacity_rows) {
    return layout.PagesFor(capacity_rows) - base_rows / layout.rows_per_page;
  }
  SequenceCache(SequenceCache&&) noexcept = default;
  SequenceCache& operator=(SequenceCache&& other) noexcept;
  ~SequenceCache();

  /// Fills an empty layer from full rows: row i of KV head h is position indices[h * rows + i], its
  /// key at k + (h * kv_head_stride + position * d) elements of layout(layer).type, its
  /// value likewise. indices: [kv_heads, rows], each head's strictly ascending. RESOURCE_EXHAUSTED
  /// beyond the capacity: admission should have prevented that.
  absl::Status Compact(int layer, const void* k, const void* v, int64_t kv_head_stride,
                       absl::Span<const int32_t> indices, int64_t rows);
  /// The same for all of the rows 0 ... rows - 1, in every KV head.
  absl::Status StoreAll(int layer, const void* k, const void* v, int64_t kv_head_stride,
                        int64_t rows);

  /// Adds one row: k and v [kv_heads, d] fp32, rounded to the types stored. RESOURCE_EXHAUSTED
  /// beyond the capacity.
  absl::Status AppendRow(int layer, const float* k, const float* v, int32_t position);

  /// Adds rows that lie contiguously in layout(layer).type, for every KV head those of the
  /// positions first_position, first_position + 1, ...: row i of KV head h at (h * kv_head_stride +
  /// i * d) elements. RESOURCE_EXHAUSTED, with nothing changed, beyond the capacity.
  absl::Status AppendRows(int layer, const void* k, const void* v, int64_t kv_head_stride,
                          int64_t rows, int32_t first_position);
  /// Back to the first `rows` rows, base_rows(layer) at least: pages that are no longer needed are
  /// promised to this sequence again.
  void Truncate(int layer, int64_t rows);
  /// All rows, base rows too, to contiguous memory: row r of KV head h at (h * kv_head_stride +
  /// r * d) elements of layout(layer).type, rounded to it.
  void CopyRows(int layer, void* k, void* v, int64_t kv_head_stride) const;

  /// From now on every decode step's attention mass is counted for the rows after the base rows,
  /// those that are there by now included. Takes kMassBytes a KV head and row of the capacity,
  /// outside the arena.
  static constexpr size_t kMassBytes = 12;
  void TrackMass();
  /// After DecodeAttention has run over the View of every layer, once a step: what it measured
  /// counts. A step that is not committed leaves no trace.
  void CommitStep();
  /// Drops rows after the base rows until the layer has target_rows in all; does nothing where it
  /// has no more. In every KV head the rows with a logical position below `sinks` and the `recent`
  /// newest ones stay; of the others those with the highest mean mass (row_mass.h), ties to the
  /// lower position. Rows keep their order and move within own pages; pages that are no longer
  /// needed are promised to this sequence again. Between steps only. FAILED_PRECONDITION without
  /// TrackMass, INVALID_ARGUMENT where target_rows cannot hold what must stay; nothing has changed
  /// then.
  absl::Status CompactBack(int layer, int64_t target_rows, int sinks, int recent);

  /// What DecodeAttention reads, and where it writes the mass if that is tracked; valid until the
  /// next change of the layer.
  PagedSequence View(int layer) const;
  const KvPageLayout& layout(int layer) const { return layers_[static_cast<size_t>(layer)].layout; }

  int layers() const { return static_cast<int>(layers_.size()); }
  int64_t rows(int layer) const { return layers_[static_cast<size_t>(layer)].rows; }
  int64_t capacity(int layer) const { return layers_[static_cast<size_t>(layer)].capacity; }
  int64_t base_rows(int layer) const { return layers_[static_cast<size_t>(layer)].base_rows; }
  /// Pages in the table, the shared ones included.
  int64_t pages(int layer) const {
    return static_cast<int64_t>(layers_[static_cast<size_t>(layer)].table.size());
  }
  /// How many pages at the table's front are shared.
  int64_t shared_pages(int layer) const {
    return layers_[static_cast<size_t>(layer)].shared_pages();
  }
  int64_t own_pages(int layer) const { return pages(layer) - shared_pages(layer); }
  const std::vector<PageId>& page_table(int layer) const {
    return layers_[static_cast<size_t>(layer)].table;
  }
  const PageReservation& reservation(int layer) const {
    return layers_[static_cast<size_t>(layer)].reservation;
  }
  /// Bytes of the pages that the layer's rows take, the shared ones included.
  size_t bytes(int layer) const;
  /// Bytes of all layers.
  size_t bytes() const;

  int32_t RowPosition(int layer, int kv_head, int64_t row) const;
  /// As stored (kernels/kv_page.h), without scales and minima.
  const std::byte* KeyRow(int layer, int kv_head, int64_t row) const;
  const std::byte* ValueRow(int layer, int kv_head, int64_t row) const;

 private:
  struct Layer {
    LayerPool* pool = nullptr;
    KvPageLayout layout;
    PageReservation reservation;
    std::vector<PageId> table;
    std::vector<std::byte*> pages;  // the table as addresses
    int64_t base_rows = 0;
    int64_t rows = 0;
    int64_t capacity = 0;
    RowMass mass;  // of the rows after the base rows

    int64_t shared_pages() const { return base_rows / layout.rows_per_page; }
  };
  SequenceCache() = default;
  void Release();
  absl::Status Fill(int layer, const void* k, const void* v, int64_t kv_head_stride,
                    const int32_t* indices, int64_t rows);
  // Takes promised pages until the table covers `rows` rows.
  absl::Status Grow(int layer, int64_t rows);
  // The table covers `rows` rows, new ones are written: they count.
  void SetRows(int layer, int64_t rows);
  const std::byte* Page(int layer, int64_t row) const;

  std::vector<Layer> layers_;
  bool tracks_mass_ = false;
  int32_t steps_ = 0;  // committed since TrackMass
};

}  // namespace ripplekv
