#include "server/engine/work_memory.h"

#include "absl/strings/str_cat.h"

namespace ripplekv {

WorkReservation& WorkReservation::operator=(WorkReservation&& other) noexcept {
  if (this != &other) {
    if (memory_ != nullptr) memory_->reserved_bytes_ -= bytes_;
    memory_ = std::exchange(other.memory_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

WorkReservation::~WorkReservation() {
  if (memory_ != nullptr) memory_->reserved_bytes_ -= bytes_;
}

void WorkReservation::ShrinkTo(size_t bytes) {
  if (bytes >= bytes_) return;
  memory_->reserved_bytes_ -= bytes_ - bytes;
  bytes_ = bytes;
}

absl::StatusOr<WorkReservation> WorkMemory::Reserve(size_t bytes) {
  const size_t available = total_bytes_ - reserved_bytes_;
  if (bytes > available) {
    return absl::ResourceExhaustedError(absl::StrCat("activations of ", bytes, " bytes wanted, ",
                                                     available, " of ", total_bytes_,
                                                     " available (--work-memory)"));
  }
  reserved_bytes_ += bytes;
  WorkReservation reservation;
  reservation.memory_ = this;
  reservation.bytes_ = bytes;
  return reservation;
}

}  // namespace ripplekv
