#pragma once

#include <cstdint>

#include "kernels/isa.h"
#include "kernels/packed_matrix.h"

namespace ripplekv {

inline constexpr int kPackedLinearMaxRows = 16;

/// y[i * y_stride + r] = sum over k of w[r, k] * x[i * x_stride + k] for i in [0, m) and r in
/// [row_begin, row_end). m is 1 to kPackedLinearMaxRows. Strides in elements. y must not overlap x.
///
/// Sums run in 16 fp32 lanes over k = lane, lane + 16, ... and fold as lane + 8, + 4, + 2, + 1: the
/// bits of y[i, r] depend on row i of x and row r of w only, not on m, the range, threads or
/// alignment (per Isa).
void PackedLinear(const PackedMatrix& w, const float* x, int64_t x_stride, int m, float* y,
                  int64_t y_stride, int64_t row_begin, int64_t row_end, Isa isa = BestIsa());

}  // namespace ripplekv
