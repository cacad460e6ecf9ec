#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/kv_type.h"
#include "kernels/thread_pool.h"

namespace ripplekv {

/// One layer's keys and values of an example, and room for a window's own rows behind them: row r
/// of KV head h at (h * stride + r * head_dim) elements of `type`.
struct LayerRows {
  KvType type = KvType::kF32;
  int kv_heads = 0;
  int head_dim = 0;
  int64_t prefix = 0;  // rows
  int64_t stride = 0;  // elements
  std::byte* k = nullptr;
  std::byte* v = nullptr;

  /// Of keys or of values, with the room.
  size_t side_bytes() const { return static_cast<size_t>(kv_heads * stride) * KvTypeBytes(type); }
};

/// Where a window finds the rows before its own: as in LayerRows.
struct RowsBefore {
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  int64_t rows = 0;  // the window's own are written behind them
  int64_t stride = 0;
};

/// Copies of a layer's keys and values, as a compressed cache would give them back.
class RowCopy {
 public:
  /// Room for whole layers of that shape (its pointers are not read).
  explicit RowCopy(const LayerRows& shape) : k_(shape.side_bytes()), v_(shape.side_bytes()) {}

  /// `positions` [kv_heads, rows] of the layer, in that order; all of them where it is empty. Keys
  /// and values are rounded to the types that they would be stored in, then to the layer's own.
  /// What this returns holds until the next call. The pool splits the work; results do not depend
  /// on it.
  RowsBefore Take(const LayerRows& layer, absl::Span<const int32_t> positions, KvTypes stored,
                  ThreadPool* pool);

  /// The room for values, for who fills it otherwise.
  std::byte* v() { return v_.data(); }

  size_t bytes() const { return k_.size() + v_.size(); }

 private:
  std::vector<std::byte> k_, v_;
};

}  // namespace ripplekv
