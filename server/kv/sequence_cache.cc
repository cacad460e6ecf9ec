#include "server/kv/sequence_cache.h"

#include <cassert>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/gather_rows.h"

namespace ripplekv {

namespace {

/// Row `from` of one KV head becomes row `to`.
void MoveRow(const KvPageLayout& layout, std::byte* const* pages, int kv_head, int64_t from,
             int64_t to) {
  const int n = layout.rows_per_page;
  layout.CopyRows(pages[from / n], static_cast<int>(from % n), pages[to / n],
                  static_cast<int>(to % n), kv_head, 1);
}

}  // namespace

absl::StatusOr<SequenceCache> SequenceCache::Reserve(absl::Span<LayerPool> pools,
                                                     absl::Span<const KvPageLayout> layouts,
                                                     absl::Span<const int64_t> capacity_rows) {
  assert(pools.size() == layouts.size());
  SequenceCache empty;
  empty.layers_.resize(pools.size());
  for (size_t l = 0; l < pools.size(); ++l) {
    assert(layouts[l].rows_per_page > 0 && layouts[l].page_bytes == pools[l].arena()->page_bytes());
    empty.layers_[l].layout = layouts[l];
  }
  return ReserveOver(empty, pools, capacity_rows);
}

absl::StatusOr<SequenceCache> SequenceCache::ReserveOver(const SequenceCache& base,
                                                         absl::Span<LayerPool> pools,
                                                         absl::Span<const int64_t> capacity_rows) {
  assert(pools.size() == capacity_rows.size() && pools.size() == base.layers_.size());
  std::vector<int64_t> pages(pools.size());
  for (size_t l = 0; l < pools.size(); ++l) {
    const Layer& from = base.layers_[l];
    assert(capacity_rows[l] >= from.rows);
    pages[l] = OwnPagesFor(from.layout, from.rows, capacity_rows[l]);
  }
  auto reservations = ReserveLayers(pools, pages);
  if (!reservations.ok()) return reservations.status();

  SequenceCache cache;
  cache.layers_.resize(pools.size());
  // Before anything else is allocated: the destructor needs them.
  for (size_t l = 0; l < pools.size(); ++l) {
    cache.layers_[l].pool = &pools[l];
    cache.layers_[l].layout = base.layers_[l].layout;
  }
  for (size_t l = 0; l < pools.size(); ++l) {
    const Layer& from = base.layers_[l];
    Layer& to = cache.layers_[l];
    const KvPageLayout& layout = from.layout;
    to.reservation = std::move((*reservations)[l]);
    to.capacity = capacity_rows[l];
    to.base_rows = from.rows;
    const auto shared = static_cast<ptrdiff_t>(to.shared_pages());
    to.table.assign(from.table.begin(), from.table.begin() + shared);
    to.pages.assign(from.pages.begin(), from.pages.begin() + shared);
    const int64_t rest = from.rows % layout.rows_per_page;
    if (rest > 0) {
      to.table.reserve(to.table.size() + 1);  // a page that was taken must find its place
      to.pages.reserve(to.pages.size() + 1);
      to.table.push_back(to.reservation.Take());
      to.pages.push_back(pools[l].arena()->page(to.table.back()));
      for (int h = 0; h < layout.kv_heads; ++h) {
        layout.CopyRows(from.pages[static_cast<size_t>(shared)], 0, to.pages.back(), 0, h,
                        static_cast<int>(rest));
      }
    }
    to.rows = from.rows;
  }
  return cache;
}

SequenceCache& SequenceCache::operator=(SequenceCache&& other) noexcept {
  if (this != &other) {
    Release();
    layers_ = std::move(other.layers_);
    other.layers_.clear();
    tracks_mass_ = other.tracks_mass_;
    steps_ = other.steps_;
  }
  return *this;
}

SequenceCache::~SequenceCache() { Release(); }

void SequenceCache::Release() {
  for (Layer& layer : layers_) {
    const auto shared = static_cast<size_t>(layer.shared_pages());
    // Backwards: the arena hands out the page that was freed last, so a run of pages stays a run.
    for (size_t i = layer.table.size(); i > shared; --i) layer.pool->Free(layer.table[i - 1]);
  }
  layers_.clear();
}

absl::Status SequenceCache::Grow(int layer, int64_t rows) {
  Layer& l = layers_[static_cast<size_t>(layer)];
  if (rows > l.capacity) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "layer %d: %d rows exceed the %d that were reserved", layer, rows, l.capacity));
  }
  const auto pages = static_cast<size_t>(l.layout.PagesFor(rows));
  l.table.reserve(pages);
  l.pages.reserve(pages);
  while (l.table.size() < pages) {
    const PageId id = l.reservation.Take();
    l.table.push_back(id);
    l.pages.push_back(l.pool->arena()->page(id));
  }
  return absl::OkStatus();
}

void SequenceCache::SetRows(int layer, int64_t rows) {
  Layer& l = layers_[static_cast<size_t>(layer)];
  if (l.mass.on()) l.mass.AddRows(l.rows - l.base_rows, rows - l.base_rows, steps_);
  l.rows = rows;
}

absl::Status SequenceCache::Fill(int layer, const void* k, const void* v, int64_t kv_head_stride,
                                 const int32_t* indices, int64_t rows) {
  Layer& l = layers_[static_cast<size_t>(layer)];
  assert(l.rows == 0);
  if (absl::Status status = Grow(layer, rows); !status.ok()) return status;
  GatherRowsArgs args;
  args.layout = l.layout;
  args.k = k;
  args.v = v;
  args.kv_head_stride = kv_head_stride;
  args.indices = indices;
  args.indices_stride = rows;
  args.pages = l.pages.data();
  GatherRows(args, 0, rows);
  SetRows(layer, rows);
  return absl::OkStatus();
}

absl::Status SequenceCache::Compact(int layer, const void* k, const void* v, int64_t kv_head_stride,
                                    absl::Span<const int32_t> indices, int64_t rows) {
  assert(static_cast<int64_t>(indices.size()) == rows * layout(layer).kv_heads);
  return Fill(layer, k, v, kv_head_stride, indices.data(), rows);
}

absl::Status SequenceCache::StoreAll(int layer, const void* k, const void* v,
                                     int64_t kv_head_stride, int64_t rows) {
  return Fill(layer, k, v, kv_head_stride, nullptr, rows);
}

absl::Status SequenceCache::AppendRow(int layer, const float* k, const float* v, int32_t position) {
  Layer& l = layers_[static_cast<size_t>(layer)];
  if (absl::Status status = Grow(layer, l.rows + 1); !status.ok()) return status;
  StoreRow(l.layout, l.pages.data(), l.rows, position, k, v);
  SetRows(layer, l.rows + 1);
  return absl::OkStatus();
}

absl::Status SequenceCache::AppendRows(int layer, const void* k, const void* v,
                                       int64_t kv_head_stride, int64_t rows,
                                       int32_t first_position) {
  Layer& l = layers_[static_cast<size_t>(layer)];
  if (absl::Status status = Grow(layer, l.rows + rows); !status.ok()) return status;
  GatherRowsArgs args;
  args.layout = l.layout;
  args.k = k;
  args.v = v;
  args.kv_head_stride = kv_head_stride;
  args.first_position = first_position;
  args.pages = l.pages.data();
  args.first_row = l.rows;
  GatherRows(args, 0, rows);
  SetRows(layer, l.rows + rows);
  return absl::OkStatus();
}

void SequenceCache::Truncate(int layer, int64_t rows) {
  Layer& l = layers_[static_cast<size_t>(layer)];
  assert(rows >= l.base_rows && rows <= l.rows);
  l.rows = rows;
  while (l.table.size() > static_cast<size_t>(l.layout.PagesFor(rows))) {
    l.reservation.Return(l.table.back());
    l.table.pop_back();
    l.pages.pop_back();
  }
}

void SequenceCache::CopyRows(int layer, void* k, void* v, int64_t kv_head_stride) const {
  const Layer& l = layers_[static_cast<size_t>(layer)];
  ReadRows(l.layout, l.pages.data(), 0, l.rows, k, v, kv_head_stride, nullptr, 0);
}

void SequenceCache::TrackMass() {
  if (tracks_mass_) return;
  tracks_mass_ = true;
  for (Layer& l : layers_) l.mass = RowMass(l.layout.kv_heads, l.capacity - l.base_rows);
}

void SequenceCache::CommitStep() {
  if (!tracks_mass_) return;
  for (Layer& l : layers_) l.mass.CommitStep(l.rows - l.base_rows);
  ++steps_;
}

absl::Status SequenceCache::CompactBack(int layer, int64_t target_rows, int sinks, int recent) {
  Layer& l = layers_[static_cast<size_t>(layer)];
  if (target_rows >= l.rows) return absl::OkStatus();
  if (!tracks_mass_) {
    return absl::FailedPreconditionError(
        absl::StrFormat("layer %d cannot be compacted: its attention mass is not tracked", layer));
  }
  const int64_t own = l.rows - l.base_rows;
  const int64_t keep = target_rows - l.base_rows;
  std::vector<std::vector<int64_t>> kept;  // a KV head, counted from base_rows
  std::vector<float> mean(static_cast<size_t>(own));
  for (int h = 0; h < l.layout.kv_heads; ++h) {
    int64_t first = 0;
    while (first < own && RowPosition(layer, h, l.base_rows + first) < sinks) ++first;
    if (first + recent > keep) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "layer %d, KV head %d cannot be compacted to %d rows: %d of a context, %d sinks and %d "
          "recent ones must stay",
          layer, h, target_rows, l.base_rows, first, recent));
    }
    for (int64_t r = 0; r < own; ++r) {
      mean[static_cast<size_t>(r)] = l.mass.Mean(h, r, steps_);
    }
    kept.push_back(ChooseByMass(mean, keep, first, recent));
  }
  for (int h = 0; h < l.layout.kv_heads; ++h) {
    // Rows only move to lower numbers, in ascending order: no row is overwritten before it moved.
    for (int64_t to = 0; to < keep; ++to) {
      const int64_t from = kept[static_cast<size_t>(h)][static_cast<size_t>(to)];
      if (from == to) continue;
      MoveRow(l.layout, l.pages.data(), h, l.base_rows + from, l.base_rows + to);
      l.mass.Move(h, from, to);
    }
  }
  Truncate(layer, target_rows);
  return absl::OkStatus();
}

PagedSequence SequenceCache::View(int layer) const {
  const Layer& l = layers_[static_cast<size_t>(layer)];
  PagedSequence view;
  view.pages = l.pages.data();
  view.rows = l.rows;
  view.mass = l.mass.step();
  view.mass_stride = l.mass.stride();
  view.mass_first_row = l.base_rows;
  return view;
}

size_t SequenceCache::bytes(int layer) const {
  return static_cast<size_t>(pages(layer)) * layout(layer).page_bytes;
}

size_t SequenceCache::bytes() const {
  size_t sum = 0;
  for (int l = 0; l < layers(); ++l) sum += bytes(l);
  return sum;
}

const std::byte* SequenceCache::Page(int layer, int64_t row) const {
  const Layer& l = layers_[static_cast<size_t>(layer)];
  assert(row >= 0 && row < l.rows);
  return l.pages[static_cast<size_t>(row / l.layout.rows_per_page)];
}

int32_t SequenceCache::RowPosition(int layer, int kv_head, int64_t row) const {
  const KvPageLayout& in = layout(layer);
  int32_t position;
  std::memcpy(
      &position,
      Page(layer, row) + in.PositionOffset(kv_head, static_cast<int>(row % in.rows_per_page)),
      sizeof position);
  return position;
}

const std::byte* SequenceCache::KeyRow(int layer, int kv_head, int64_t row) const {
  const KvPageLayout& in = layout(layer);
  return Page(layer, row) + in.KeyOffset(kv_head, static_cast<int>(row % in.rows_per_page));
}

const std::byte* SequenceCache::ValueRow(int layer, int kv_head, int64_t row) const {
  const KvPageLayout& in = layout(layer);
  return Page(layer, row) + in.ValueOffset(kv_head, static_cast<int>(row % in.rows_per_page));
}

}  // namespace ripplekv
