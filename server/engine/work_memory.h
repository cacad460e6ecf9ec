#pragma once

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ripplekv {

class WorkMemory;

/// Bytes of activations promised to one task. Move-only; given back when it dies.
class WorkReservation {
 public:
  WorkReservation() = default;
  WorkReservation(WorkReservation&& other) noexcept { *this = std::move(other); }
  WorkReservation& operator=(WorkReservation&& other) noexcept;
  ~WorkReservation();

  size_t bytes() const { return bytes_; }
  /// Gives back what is over `bytes`; nothing where it is less already.
  void ShrinkTo(size_t bytes);

 private:
  friend class WorkMemory;
  WorkMemory* memory_ = nullptr;
  size_t bytes_ = 0;
};

/// The account of --work-memory: activations that grow with what is at work (residual streams,
/// scores, logits). Used by the engine thread only; outlives its reservations.
class WorkMemory {
 public:
  explicit WorkMemory(size_t total_bytes) : total_bytes_(total_bytes) {}

  /// RESOURCE_EXHAUSTED with the figures.
  absl::StatusOr<WorkReservation> Reserve(size_t bytes);

  size_t total_bytes() const { return total_bytes_; }
  size_t reserved_bytes() const { return reserved_bytes_; }

 private:
  friend class WorkReservation;
  size_t total_bytes_;
  size_t reserved_bytes_ = 0;
};

}  // namespace ripplekv
