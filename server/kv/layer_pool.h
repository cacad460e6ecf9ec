#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/kv/page_arena.h"

namespace ripplekv {

class LayerPool;

/// Pages promised to one sequence in one layer. Move-only; what was not taken goes back when it
/// dies.
class PageReservation {
 public:
  PageReservation() = default;
  PageReservation(PageReservation&& other) noexcept;
  PageReservation& operator=(PageReservation&& other) noexcept;
  ~PageReservation();

  int64_t pages() const { return pages_; }  // not yet taken
  /// Turns one promised page into a used one; pages() must be positive.
  PageId Take();
  /// The reverse: a used page that Take gave becomes a promised one again.
  void Return(PageId id);

 private:
  friend class LayerPool;
  LayerPool* pool_ = nullptr;
  int64_t pages_ = 0;
};

/// The pages that one layer holds, its quota (its share in the plan) and its figures. The arena
/// bounds what a layer may take, not the quota: a request's own parameters may shift the shares.
/// The arena must outlive the pool.
class LayerPool {
 public:
  LayerPool(int layer, PageArena* arena) : layer_(layer), arena_(arena) {}

  /// RESOURCE_EXHAUSTED with layer, wanted and available pages.
  absl::StatusOr<PageReservation> Reserve(int64_t pages);
  void Free(PageId id);

  int layer() const { return layer_; }
  PageArena* arena() const { return arena_; }
  int64_t used_pages() const { return used_; }
  int64_t reserved_pages() const { return reserved_; }
  size_t used_bytes() const { return static_cast<size_t>(used_) * arena_->page_bytes(); }
  size_t reserved_bytes() const { return static_cast<size_t>(reserved_) * arena_->page_bytes(); }

  size_t quota_bytes() const { return quota_bytes_; }
  void set_quota_bytes(size_t bytes) { quota_bytes_ = bytes; }

 private:
  friend class PageReservation;
  int layer_;
  PageArena* arena_;
  int64_t used_ = 0;
  int64_t reserved_ = 0;
  size_t quota_bytes_ = 0;
};

/// One reservation a layer, or none at all: a failure in any layer leaves every pool as it was.
absl::StatusOr<std::vector<PageReservation>> ReserveLayers(absl::Span<LayerPool> pools,
                                                           absl::Span<const int64_t> pages);

/// A pool a layer over one arena.
std::vector<LayerPool> MakeLayerPools(int layers, PageArena* arena);

/// Shares the arena's pages among the pools in proportion to `weights` (one a layer, positive):
/// their quotas.
void SetQuotas(absl::Span<LayerPool> pools, absl::Span<const double> weights);

}  // namespace ripplekv
