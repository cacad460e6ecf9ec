#pragma once

#include <cstddef>
#include <optional>

#include "absl/status/statusor.h"
#include "calibration/row_copy.h"
#include "calibration/row_selector.h"
#include "calibration/settings.h"
#include "kernels/thread_pool.h"
#include "model/model_config.h"

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

/// Alters copies of a layer's prefix rows. Results do not depend on the thread count.
class AlteredRows {
 public:
  /// Of layers of that shape (its pointers are not read). The model's configuration and the pool,
  /// which splits the work, outlive this object.
  AlteredRows(const CalibrationSettings& settings, const ModelConfig& config,
              const LayerRows& shape, ThreadPool* pool);

  /// What chooses the rows of kKeepRows: takes the queries of a layer's prefix and scores its keys
  /// before. Null where the settings ask for none.
  RowSelector* selector() { return selector_.has_value() ? &*selector_ : nullptr; }

  /// What the window reads instead of `layer`, until the next call. Keys may be the layer's own.
  absl::StatusOr<RowsBefore> Alter(const Alteration& alteration, const LayerRows& layer,
                                   int example_index, int layer_index);

  size_t bytes() const;

 private:
  RowsBefore Perturb(const LayerRows& layer, int example_index, int layer_index);
  absl::StatusOr<RowsBefore> KeepRows(double retention, const LayerRows& layer, int layer_index);

  const CalibrationSettings settings_;
  ThreadPool* const pool_;
  RowCopy copy_;
  std::optional<RowSelector> selector_;
  size_t selector_bytes_ = 0;
};

}  // namespace ripplekv
