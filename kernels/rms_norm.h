#pragma once

#include <cstdint>

#include "kernels/isa.h"

namespace ripplekv {

/// y[i, :] = x[i, :] / sqrt(mean(x[i, :]^2) + epsilon) * weight for rows [row_begin, row_end) of x
/// [rows, cols], in fp32. y may be x. A row's bits do not depend on the others.
void RmsNorm(const float* x, const float* weight, int64_t cols, float epsilon, float* y,
             int64_t row_begin, int64_t row_end, Isa isa = BestIsa());

/// The same, rounded to bf16 (nearest even).
void RmsNormBf16(const float* x, const float* weight, int64_t cols, float epsilon, uint16_t* y,
                 int64_t row_begin, int64_t row_end, Isa isa = BestIsa());

}  // namespace ripplekv
