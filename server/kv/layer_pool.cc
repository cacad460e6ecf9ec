#include "server/kv/layer_pool.h"

#include <cassert>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ripplekv {

PageReservation::PageReservation(PageReservation&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), pages_(std::exchange(other.pages_, 0)) {}

PageReservation& PageReservation::operator=(PageReservation&& other) noexcept {
  PageReservation taken(std::move(other));
  // What this one held goes back with the temporary.
  std::swap(pool_, taken.pool_);
  std::swap(pages_, taken.pages_);
  return *this;
}

PageReservation::~PageReservation() {
  if (pool_ == nullptr) return;
  pool_->reserved_ -= pages_;
  pool_->arena_->Unreserve(pages_);
}

PageId PageReservation::Take() {
  assert(pool_ != nullptr && pages_ > 0);
  const PageId id = pool_->arena_->Take();
  --pages_;
  --pool_->reserved_;
  ++pool_->used_;
  return id;
}

void PageReservation::Return(PageId id) {
  assert(pool_ != nullptr && pool_->used_ > 0);
  pool_->arena_->PutBack(id);
  ++pages_;
  ++pool_->reserved_;
  --pool_->used_;
}

absl::StatusOr<PageReservation> LayerPool::Reserve(int64_t pages) {
  if (absl::Status status = arena_->Reserve(pages); !status.ok()) {
    return absl::Status(status.code(),
                        absl::StrCat("layer ", layer_, ": ", std::string(status.message())));
  }
  reserved_ += pages;
  PageReservation reservation;
  reservation.pool_ = this;
  reservation.pages_ = pages;
  return reservation;
}

void LayerPool::Free(PageId id) {
  assert(used_ > 0);
  --used_;
  arena_->Free(id);
}

absl::StatusOr<std::vector<PageReservation>> ReserveLayers(absl::Span<LayerPool> pools,
                                                           absl::Span<const int64_t> pages) {
  assert(pools.size() == pages.size());
  std::vector<PageReservation> reservations;
  reservations.reserve(pools.size());
  for (size_t l = 0; l < pools.size(); ++l) {
    auto reservation = pools[l].Reserve(pages[l]);
    if (!reservation.ok()) return reservation.status();
    reservations.push_back(*std::move(reservation));
  }
  return reservations;
}

std::vector<LayerPool> MakeLayerPools(int layers, PageArena* arena) {
  std::vector<LayerPool> pools;
  pools.reserve(static_cast<size_t>(layers));
  for (int l = 0; l < layers; ++l) pools.emplace_back(l, arena);
  return pools;
}

void SetQuotas(absl::Span<LayerPool> pools, absl::Span<const double> weights) {
  assert(pools.size() == weights.size());
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (size_t l = 0; l < pools.size(); ++l) {
    const PageArena& arena = *pools[l].arena();
    const auto pages = static_cast<size_t>(static_cast<double>(arena.pages()) * weights[l] / sum);
    pools[l].set_quota_bytes(pages * arena.page_bytes());
  }
}

}  // namespace ripplekv
