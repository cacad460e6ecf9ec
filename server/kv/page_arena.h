#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ripplekv {

using PageId = int32_t;

struct PageArenaOptions {
  size_t total_bytes = 0;  // --kv-memory: pages and the prefill layer together
  size_t page_bytes = 0;   // a multiple of 64
  size_t prefill_layer_bytes =
      0;  // full K and V of one layer for the longest prompt; rounded up to 64
};

class PageArena;

/// The full K and V of the layer that is being prefilled, while it lives. Move-only; gives itself
/// back.
class PrefillLayer {
 public:
  PrefillLayer() = default;
  PrefillLayer(PrefillLayer&& other) noexcept;
  PrefillLayer& operator=(PrefillLayer&& other) noexcept;
  ~PrefillLayer();

  std::byte* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }

 private:
  friend class PageArena;
  PageArena* arena_ = nullptr;
  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
};

/// All memory for keys and values: one allocation of fixed-size pages, and one layer of full K and
/// V that prefills share. Counts pages and the bytes of the prefill layer that are in use. Takes
/// physical memory as it is used, in the kernel's large pages (2 MiB) where it has them. Used by
/// the engine thread only.
class PageArena {
 public:
  /// INVALID_ARGUMENT: a page size that is no multiple of 64, or too little memory for the prefill
  /// layer and one page. RESOURCE_EXHAUSTED: the operating system does not give the memory.
  static absl::StatusOr<std::unique_ptr<PageArena>> Create(const PageArenaOptions& options);
  /// How many pages Create would make; 0 where it would refuse for want of memory.
  static int64_t PagesOf(const PageArenaOptions& options);
  ~PageArena();
  PageArena(const PageArena&) = delete;
  PageArena& operator=(const PageArena&) = delete;

  size_t page_bytes() const { return page_bytes_; }
  int64_t pages() const { return pages_; }
  std::byte* page(PageId id) const { return pages_base_ + static_cast<size_t>(id) * page_bytes_; }

  /// Promises `pages` pages: they are no longer available, but in no use yet. RESOURCE_EXHAUSTED
  /// with the figures.
  absl::Status Reserve(int64_t pages);
  /// Gives back a promise that was not taken up.
  void Unreserve(int64_t pages);
  /// Turns one promised page into a used one. There must be a promise.
  PageId Take();
  /// The reverse of Take: a used page becomes a promised one. The next Take gives it out again.
  void PutBack(PageId id);
  /// A used page becomes free.
  void Free(PageId id);

  /// RESOURCE_EXHAUSTED while another lives or where `bytes` exceeds the region.
  absl::StatusOr<PrefillLayer> AcquirePrefillLayer(size_t bytes);

  int64_t used_pages() const { return pages_ - static_cast<int64_t>(free_.size()); }
  int64_t reserved_pages() const { return reserved_; }  // promised and not yet used
  int64_t available_pages() const { return static_cast<int64_t>(free_.size()) - reserved_; }
  size_t prefill_layer_capacity_bytes() const { return prefill_capacity_bytes_; }
  size_t prefill_layer_used_bytes() const { return prefill_used_bytes_; }

  /// Pages in use and the used part of the prefill layer.
  size_t used_bytes() const;
  size_t reserved_bytes() const { return static_cast<size_t>(reserved_) * page_bytes_; }
  size_t total_bytes() const { return total_bytes_; }
  /// The highest used_bytes() since the last reset.
  size_t peak_bytes() const { return peak_bytes_; }
  void ResetPeak() { peak_bytes_ = used_bytes(); }

  const std::vector<PageId>& free_list() const { return free_; }  // for the invariant checker

 private:
  friend class PrefillLayer;
  PageArena() = default;
  void ReleasePrefillLayer();
  void NotePeak();

  std::byte* base_ = nullptr;
  size_t total_bytes_ = 0;
  size_t page_bytes_ = 0;
  std::byte* pages_base_ = nullptr;
  int64_t pages_ = 0;
  int64_t reserved_ = 0;
  std::vector<PageId> free_;  // the next page to take is at the back
  std::byte* prefill_base_ = nullptr;
  size_t prefill_capacity_bytes_ = 0;
  size_t prefill_used_bytes_ = 0;
  bool prefill_busy_ = false;
  size_t peak_bytes_ = 0;
};

}  // namespace ripplekv
