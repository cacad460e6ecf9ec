#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "calibration/row_copy.h"
#include "calibration/row_selector.h"
#include "model/decoder.h"

namespace ripplekv {

/// Pushes tokens of calibration examples through one layer of the model, in chunks of
/// Decoder::kChunkTokens at fixed places. Call Decoder::ExpandLayer first.
class LayerPass {
 public:
  /// The decoder outlives this object.
  explicit LayerPass(Decoder* decoder);

  /// Tokens [begin, end) of a prefix through the layer; begin and, but for the last ones, end are
  /// whole chunks. hidden: [prefix, hidden], of the whole prefix. Their keys and values go to
  /// `rows`; the selector, if any, takes their queries. only_rows: they are all that is wanted.
  absl::Status Prefix(int layer, const LayerRows& rows, int64_t begin, int64_t end, float* hidden,
                      RowSelector* selector, bool only_rows);

  /// The extend loop: tokens at positions first ... through the layer over the rows before them.
  /// hidden: [count, hidden].
  absl::Status Extend(int layer, const RowsBefore& before, int64_t first, int count, float* hidden);

  size_t bytes() const { return q_.size() + attention_.size(); }

 private:
  absl::Status Project(int layer, const RowsBefore& before, int64_t position, int tokens,
                       const float* chunk);
  absl::Status Attend(int layer, const RowsBefore& before, int tokens, float* chunk);

  Decoder* const decoder_;
  std::vector<std::byte> q_;          // [kChunkTokens, heads, d]
  std::vector<std::byte> attention_;  // [kChunkTokens, heads, d]
};

}  // namespace ripplekv
