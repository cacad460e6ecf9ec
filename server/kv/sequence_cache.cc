#include "server/kv/sequence_cache.h"

#include <cassert>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/gather_rows.h"

namespace ripplekv {

absl::StatusOr<SequenceCache> SequenceCache::Reserve(absl::Span<LayerPool> pools,
                                                     const KvPageLayout& layout,
                                                     absl::Span<const int64_t> capacity_rows) {
  assert(pools.size() == capacity_rows.size());
  std::vector<int64_t> pages(pools.size());
  for (size_t l = 0; l < pools.size(); ++l) pages[l] = layout.PagesFor(capacity_rows[l]);
  auto reservations = ReserveLayers(pools, pages);
  if (!reservations.ok()) return reservations.status();

  SequenceCache cache;
  cache.layout_ = layout;
  cache.layers_.resize(pools.size());
  for (size_t l = 0; l < pools.size(); ++l) {
    cache.layers_[l].pool = &pools[l];
    cache.layers_[l].reservation = std::move((*reservations)[l]);
    cache.layers_[l].capacity = capacity_rows[l];
  }
  return cache;
}

SequenceCache& SequenceCache::operator=(SequenceCache&& other) noexcept {
  if (this != &other) {
    Release();
    layout_ = other.layout_;
    layers_ = std::move(other.layers_);
    other.layers_.clear();
  }
  return *this;
}

SequenceCache::~SequenceCache() { Release(); }

void SequenceCache::Release() {
  for (Layer& layer : layers_) {
    // Backwards: the arena hands out the page that was freed last, so a run of pages stays a run.
    for (size_t i = layer.table.size(); i > 0; --i) layer.pool->Free(layer.table[i - 1]);
  }
  layers_.clear();
}

absl::Status SequenceCache::Grow(int layer, int64_t rows) {
  Layer& l = layers_[static_cast<size_t>(layer)];
  if (rows > l.capacity) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "layer %d: %d rows exceed the %d that were reserved", layer, rows, l.capacity));
  }
  const auto pages = static_cast<size_t>(layout_.PagesFor(rows));
  l.table.reserve(pages);
  l.pages.reserve(pages);
  while (l.table.size() < pages) {
    const PageId id = l.reservation.Take();
    l.table.push_back(id);
    l.pages.push_back(l.pool->arena()->page(id));
  }
  return absl::OkStatus();
}

absl::Status SequenceCache::Fill(int layer, const void* k, const void* v, int64_t kv_head_stride,
                                 const int32_t* indices, int64_t rows) {
  Layer& l = layers_[static_cast<size_t>(layer)];
  assert(l.rows == 0);
  if (absl::Status status = Grow(layer, rows); !status.ok()) return status;
  GatherRowsArgs args;
  args.layout = layout_;
  args.k = k;
  args.v = v;
  args.kv_head_stride = kv_head_stride;
  args.indices = indices;
  args.indices_stride = rows;
  args.pages = l.pages.data();
  GatherRows(args, 0, rows);
  l.rows = rows;
  return absl::OkStatus();
}

absl::Status SequenceCache::Compact(int layer, const void* k, const void* v, int64_t kv_head_stride,
                                    absl::Span<const int32_t> indices, int64_t rows) {
  assert(static_cast<int64_t>(indices.size()) == rows * layout_.kv_heads);
  return Fill(layer, k, v, kv_head_stride, indices.data(), rows);
}

absl::Status SequenceCache::StoreAll(int layer, const void* k, const void* v,
                                     int64_t kv_head_stride, int64_t rows) {
  return Fill(layer, k, v, kv_head_stride, nullptr, rows);
}

absl::Status SequenceCache::AppendRow(int layer, const float* k, const float* v, int32_t position) {
  Layer& l = layers_[static_cast<size_t>(layer)];
  if (absl::Status status = Grow(layer, l.rows + 1); !status.ok()) return status;
  StoreRow(layout_, l.pages.data(), l.rows, position, k, v);
  ++l.rows;
  return absl::OkStatus();
}

PagedSequence SequenceCache::View(int layer) const {
  const Layer& l = layers_[static_cast<size_t>(layer)];
  return {l.pages.data(), l.rows};
}

size_t SequenceCache::bytes(int layer) const {
  return static_cast<size_t>(pages(layer)) * layout_.page_bytes;
}

size_t SequenceCache::bytes() const {
  size_t sum = 0;
  for (int l = 0; l < layers(); ++l) sum += bytes(l);
  return sum;
}

const std::byte* SequenceCache::Page(int layer, int64_t row) const {
  const Layer& l = layers_[static_cast<size_t>(layer)];
  assert(row >= 0 && row < l.rows);
  return l.pages[static_cast<size_t>(row / layout_.rows_per_page)];
}

int32_t SequenceCache::RowPosition(int layer, int kv_head, int64_t row) const {
  int32_t position;
  std::memcpy(&position,
              Page(layer, row) +
                  layout_.PositionOffset(kv_head, static_cast<int>(row % layout_.rows_per_page)),
              sizeof position);
  return position;
}

const std::byte* SequenceCache::KeyRow(int layer, int kv_head, int64_t row) const {
  return Page(layer, row) +
         layout_.KeyOffset(kv_head, static_cast<int>(row % layout_.rows_per_page));
}

const std::byte* SequenceCache::ValueRow(int layer, int kv_head, int64_t row) const {
  return Page(layer, row) +
         layout_.ValueOffset(kv_head, static_cast<int>(row % layout_.rows_per_page));
}

}  // namespace ripplekv
