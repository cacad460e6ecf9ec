#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/isa.h"
#include "kernels/tensor_type.h"

namespace ripplekv {

/// A view of weights [rows = outputs, cols = inputs] as the checkpoint stores them: GGML blocks
/// along the columns, row r at data + r * row_bytes. cols is a multiple of block_elements(type). No
/// alignment is asked for.
struct PackedMatrix {
  TensorType type = TensorType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  const std::byte* data = nullptr;
  int64_t row_bytes = 0;
};

/// out [row_end - row_begin, cols] = the exact values of those rows (every GGML value is
/// fp32-representable or, for Q4_1, one fp32 rounding of d * q + m).
void ExpandRows(const PackedMatrix& w, int64_t row_begin, int64_t row_end, float* out,
                Isa isa = BestIsa());

}  // namespace ripplekv
