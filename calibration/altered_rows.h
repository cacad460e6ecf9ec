#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "calibration/settings.h"
#include "kernels/kv_type.h"
#include "kernels/thread_pool.h"

namespace ripplekv {

/// What is done to the cached prefix rows of one layer before the evaluation window reads them.
struct Alteration {
  enum class Kind {
    kPerturb,   // noise on the values of unprotected rows
    kKeepRows,  // all but the rows that damage_retentions[index] keeps are dropped
    kStore,     // every row is stored in kDamageTypes[index]
  };
  Kind kind = Kind::kPerturb;
  int index = 0;
};

/// One layer's keys and values of an example, and room for a window's own rows behind them: row r
/// of KV head h at (h * stride + r * head_dim) elements of `type`.
struct LayerRows {
  KvType type = KvType::kF32;
  int heads = 0;  // query heads
  int kv_heads = 0;
  int head_dim = 0;
  int64_t prefix = 0;  // rows
  int64_t stride = 0;  // elements
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  const std::byte* window_q = nullptr;  // [selector window, heads, d]: of the prefix's last rows
};

/// Where a window finds the rows before its own.
struct RowsBefore {
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  int64_t rows = 0;  // the window's own are written behind them
};

/// Alters copies of a layer's prefix rows. Results do not depend on the thread count.
class AlteredRows {
 public:
  /// Room for the largest alteration that the settings ask for. The pool splits the work and
  /// outlives this object.
  AlteredRows(const CalibrationSettings& settings, const LayerRows& shape, ThreadPool* pool);

  /// Scores the positions of the layer's prefix, for its kKeepRows.
  void Score(const LayerRows& layer);

  /// What the window reads instead of `layer`, until the next call. Keys may be the layer's own.
  absl::StatusOr<RowsBefore> Alter(const Alteration& alteration, const LayerRows& layer,
                                   int example_index, int layer_index);

  size_t bytes() const;

 private:
  RowsBefore Perturb(const LayerRows& layer, int example_index, int layer_index);
  absl::StatusOr<RowsBefore> KeepRows(double retention, const LayerRows& layer);
  RowsBefore Store(KvTypes types, const LayerRows& layer);

  const CalibrationSettings settings_;
  ThreadPool* const pool_;
  std::vector<std::byte> k_, v_;
  std::vector<float> scores_;        // [heads, prefix - window]
  std::vector<float> group_scores_;  // [kv_heads, prefix - window]
  std::vector<float> workspace_;     // of KeyScores
};

}  // namespace ripplekv
