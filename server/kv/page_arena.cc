#include "server/kv/page_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"

namespace ripplekv {
namespace {

size_t PrefillBytes(const PageArenaOptions& options) {
  return (options.prefill_layer_bytes + 63) / 64 * 64;
}

}  // namespace

PrefillLayer::PrefillLayer(PrefillLayer&& other) noexcept
    : arena_(std::exchange(other.arena_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

PrefillLayer& PrefillLayer::operator=(PrefillLayer&& other) noexcept {
  if (this != &other) {
    if (arena_ != nullptr) arena_->ReleasePrefillLayer();
    arena_ = std::exchange(other.arena_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
  }
  return *this;
}

PrefillLayer::~PrefillLayer() {
  if (arena_ != nullptr) arena_->ReleasePrefillLayer();
}

int64_t PageArena::PagesOf(const PageArenaOptions& options) {
  const size_t prefill = PrefillBytes(options);
  if (options.total_bytes < prefill) return 0;
  return static_cast<int64_t>((options.total_bytes - prefill) / options.page_bytes);
}

absl::StatusOr<std::unique_ptr<PageArena>> PageArena::Create(const PageArenaOptions& options) {
  if (options.page_bytes == 0 || options.page_bytes % 64 != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "page size %u bytes: must be a positive multiple of 64", options.page_bytes));
  }
  const size_t prefill = PrefillBytes(options);
  if (options.total_bytes < prefill || options.total_bytes - prefill < options.page_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "KV memory of %u bytes cannot hold one full layer of the longest prompt (%u bytes) and one "
        "page (%u bytes): "
        "give at least %u bytes",
        options.total_bytes, prefill, options.page_bytes, prefill + options.page_bytes));
  }
  const auto pages = static_cast<size_t>(PagesOf(options));
  if (pages > static_cast<size_t>(std::numeric_limits<PageId>::max())) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "KV memory of %u bytes is %u pages of %u bytes, more than %d: use larger pages",
        options.total_bytes, pages, options.page_bytes, std::numeric_limits<PageId>::max()));
  }
  void* base = mmap(nullptr, options.total_bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrFormat("cannot map %u bytes of KV memory: %s",
                                                        options.total_bytes, strerror(errno)));
  }
  // Attention reads pages in no order: with small pages of memory it would wait for their
  // addresses. Where the kernel has no large ones this changes nothing.
  madvise(base, options.total_bytes, MADV_HUGEPAGE);
  auto arena = std::unique_ptr<PageArena>(new PageArena);
  arena->base_ = static_cast<std::byte*>(base);
  arena->total_bytes_ = options.total_bytes;
  arena->page_bytes_ = options.page_bytes;
  arena->prefill_base_ = arena->base_;
  arena->prefill_capacity_bytes_ = prefill;
  arena->pages_base_ = arena->base_ + prefill;
  arena->pages_ = static_cast<int64_t>(pages);
  arena->free_.reserve(pages);
  // Lowest addresses first, so that a fresh sequence's pages lie in a row.
  for (size_t i = pages; i > 0; --i) arena->free_.push_back(static_cast<PageId>(i - 1));
  return arena;
}

PageArena::~PageArena() {
  assert(!prefill_busy_ && used_pages() == 0 && reserved_ == 0);
  munmap(base_, total_bytes_);
}

absl::Status PageArena::Reserve(int64_t pages) {
  if (pages < 0 || pages > available_pages()) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%d pages of %u bytes wanted, %d of %d available", pages, page_bytes_,
                        available_pages(), pages_));
  }
  reserved_ += pages;
  return absl::OkStatus();
}

void PageArena::Unreserve(int64_t pages) {
  assert(pages >= 0 && pages <= reserved_);
  reserved_ -= pages;
}

PageId PageArena::Take() {
  assert(reserved_ > 0 && !free_.empty());
  --reserved_;
  const PageId id = free_.back();
  free_.pop_back();
  NotePeak();
  return id;
}

void PageArena::PutBack(PageId id) {
  Free(id);
  ++reserved_;
}

void PageArena::Free(PageId id) {
  assert(id >= 0 && id < pages_);
  free_.push_back(id);
}

absl::StatusOr<PrefillLayer> PageArena::AcquirePrefillLayer(size_t bytes) {
  if (prefill_busy_) return absl::ResourceExhaustedError("the prefill layer is in use");
  if (bytes > prefill_capacity_bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("a full layer of %u bytes exceeds the prefill layer of %u bytes", bytes,
                        prefill_capacity_bytes_));
  }
  prefill_busy_ = true;
  prefill_used_bytes_ = bytes;
  NotePeak();
  PrefillLayer layer;
  layer.arena_ = this;
  layer.data_ = prefill_base_;
  layer.size_bytes_ = bytes;
  return layer;
}

void PageArena::ReleasePrefillLayer() {
  prefill_busy_ = false;
  prefill_used_bytes_ = 0;
}

size_t PageArena::used_bytes() const {
  return static_cast<size_t>(used_pages()) * page_bytes_ + prefill_used_bytes_;
}

void PageArena::NotePeak() { peak_bytes_ = std::max(peak_bytes_, used_bytes()); }

}  // namespace ripplekv
