#include "server/kv/invariants.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace ripplekv {
namespace {

absl::Status Broken(std::string what) {
  return absl::InternalError(absl::StrCat("KV invariant broken: ", std::move(what)));
}

absl::Status CheckLayer(const SequenceCache& cache, int layer) {
  const KvPageLayout& layout = cache.layout(layer);
  const int64_t rows = cache.rows(layer);
  if (rows > cache.capacity(layer)) {
    return Broken(absl::StrCat("layer ", layer, " has ", rows, " rows of ", cache.capacity(layer),
                               " reserved"));
  }
  if (cache.pages(layer) != layout.PagesFor(rows)) {
    return Broken(
        absl::StrCat("layer ", layer, " has ", cache.pages(layer), " pages for ", rows, " rows"));
  }
  if (cache.base_rows(layer) > rows || cache.base_rows(layer) < 0) {
    return Broken(absl::StrCat("layer ", layer, " has ", rows, " rows, but ",
                               cache.base_rows(layer), " of a context"));
  }
  if (cache.pages(layer) + cache.reservation(layer).pages() !=
      layout.PagesFor(cache.capacity(layer))) {
    return Broken(absl::StrCat("layer ", layer, " has ", cache.pages(layer), " pages and ",
                               cache.reservation(layer).pages(), " promised for a capacity of ",
                               cache.capacity(layer), " rows"));
  }
  for (int head = 0; head < layout.kv_heads; ++head) {
    int32_t last = -1;
    for (int64_t row = 0; row < rows; ++row) {
      const int32_t position = cache.RowPosition(layer, head, row);
      if (position <= last) {
        return Broken(absl::StrCat("layer ", layer, ", KV head ", head, ", row ", row,
                                   ": position ", position, " after ", last));
      }
      last = position;
    }
  }
  return absl::OkStatus();
}

/// Where a page was found.
struct Place {
  bool found = false;
  const SequenceCache* owner = nullptr;  // null: the free list
  int layer = 0;
  int64_t index = 0;  // in the owner's page table
};

}  // namespace

absl::Status CheckKvInvariants(const PageArena& arena, absl::Span<const LayerPool> pools,
                               absl::Span<const SequenceCache* const> sequences) {
  std::vector<Place> places(static_cast<size_t>(arena.pages()));
  auto own = [&](PageId id, Place place, const std::string& who) -> absl::Status {
    if (id < 0 || id >= arena.pages())
      return Broken(absl::StrCat(who, " holds page ", id, ", which does not exist"));
    Place& known = places[static_cast<size_t>(id)];
    if (known.found) return Broken(absl::StrCat(who, " holds page ", id, " twice or with another"));
    known = place;
    return absl::OkStatus();
  };
  for (PageId id : arena.free_list()) {
    if (absl::Status status = own(id, {.found = true}, "the free list"); !status.ok())
      return status;
  }
  std::vector<int64_t> used(pools.size(), 0);
  std::vector<int64_t> reserved(pools.size(), 0);
  for (size_t s = 0; s < sequences.size(); ++s) {
    const SequenceCache& cache = *sequences[s];
    for (int layer = 0; layer < cache.layers(); ++layer) {
      if (absl::Status status = CheckLayer(cache, layer); !status.ok()) return status;
      for (int64_t i = cache.shared_pages(layer); i < cache.pages(layer); ++i) {
        if (absl::Status status = own(cache.page_table(layer)[static_cast<size_t>(i)],
                                      {.found = true, .owner = &cache, .layer = layer, .index = i},
                                      absl::StrCat("sequence ", s, ", layer ", layer));
            !status.ok())
          return status;
      }
      used[static_cast<size_t>(layer)] += cache.own_pages(layer);
      reserved[static_cast<size_t>(layer)] += cache.reservation(layer).pages();
    }
  }
  for (size_t id = 0; id < places.size(); ++id) {
    if (!places[id].found)
      return Broken(absl::StrCat("page ", id, " is neither free nor in a page table"));
  }
  for (size_t s = 0; s < sequences.size(); ++s) {
    const SequenceCache& cache = *sequences[s];
    for (int layer = 0; layer < cache.layers(); ++layer) {
      for (int64_t i = 0; i < cache.shared_pages(layer); ++i) {
        const PageId id = cache.page_table(layer)[static_cast<size_t>(i)];
        const Place* place =
            id >= 0 && id < arena.pages() ? &places[static_cast<size_t>(id)] : nullptr;
        if (place == nullptr || place->owner == nullptr || place->layer != layer ||
            place->index != i || place->owner->layout(layer) != cache.layout(layer) ||
            place->owner->rows(layer) < (i + 1) * cache.layout(layer).rows_per_page) {
          return Broken(absl::StrCat("sequence ", s, ", layer ", layer, " shares page ", id, " as ",
                                     i, ", which is no full page of a sequence there"));
        }
      }
    }
  }
  int64_t all_reserved = 0;
  for (size_t l = 0; l < pools.size(); ++l) {
    if (pools[l].used_pages() != used[l] || pools[l].reserved_pages() != reserved[l]) {
      return Broken(absl::StrCat("layer ", l, "'s pool counts ", pools[l].used_pages(),
                                 " used and ", pools[l].reserved_pages(),
                                 " promised pages, its sequences ", used[l], " and ", reserved[l]));
    }
    all_reserved += reserved[l];
  }
  if (arena.reserved_pages() != all_reserved || arena.available_pages() < 0) {
    return Broken(absl::StrCat("the arena counts ", arena.reserved_pages(), " promised pages (",
                               arena.available_pages(), " available), its pools ", all_reserved));
  }
  return absl::OkStatus();
}

}  // namespace ripplekv
