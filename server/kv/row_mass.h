#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"

namespace ripplekv {

/// The attention that decode steps gave to one layer's rows, per KV head: H2O's accumulated
/// attention (arXiv 2306.14048), but as a mean per step seen, so that a row is not worth more for
/// being old. With P_t[g, r] the softmax probability of row r for query head g in step t:
///
///   mean[h, r] = sum over steps t since the row was added, over g in the group of h, of P_t[g, r]
///                / number of those steps        (0 where no step has seen the row)
///
/// A mean that is no number counts as 0.
class RowMass {
 public:
  RowMass() = default;  // tracks nothing
  RowMass(int kv_heads, int64_t capacity_rows);

  bool on() const { return step_ != nullptr; }
  int64_t stride() const { return stride_; }
  /// Where attention writes a step's mass, [kv_heads, stride()].
  float* step() const { return step_.get(); }

  /// Rows [begin, end) are new, before step `steps` (from 0).
  void AddRows(int64_t begin, int64_t end, int32_t steps);
  /// Adds the step's mass to the first `rows` rows.
  void CommitStep(int64_t rows);
  /// After `steps` steps in all.
  float Mean(int kv_head, int64_t row, int32_t steps) const;
  /// Row `from` becomes row `to`.
  void Move(int kv_head, int64_t from, int64_t to);

 private:
  size_t At(int kv_head, int64_t row) const { return static_cast<size_t>(kv_head * stride_ + row); }
  int kv_heads_ = 0;
  int64_t stride_ = 0;
  std::unique_ptr<float[]> step_;
  std::vector<float> sum_;      // [kv_heads, stride]
  std::vector<int32_t> added_;  // [kv_heads, stride]: steps that were over by then
};

/// The `keep` of mean.size() rows that stay, ascending: the first `first` and the last `last`, and
/// of the others those with the highest mean, ties to the lower row. first + last <= keep <=
/// mean.size().
std::vector<int64_t> ChooseByMass(absl::Span<const float> mean, int64_t keep, int64_t first,
                                  int64_t last);

}  // namespace ripplekv
