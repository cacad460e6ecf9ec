#include "kernels/isa_functions.h"
#include "kernels/simd.h"

namespace ripplekv::RIPPLEKV_ISA {

void RmsNorm(const float* x, const float* weight, int64_t cols, float epsilon, float* y,
             int64_t row_begin, int64_t row_end) {
  const int64_t whole = cols / kLanes * kLanes;
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* xr = x + row * cols;
    float* yr = y + row * cols;
    Vec sum = Zero();
    for (int64_t i = 0; i < whole; i += kLanes) {
      const Vec v = Load(xr + i);
      sum = Fma(v, v, sum);
    }
    if (whole < cols) {
      const Vec v = LoadPart(xr + whole, cols - whole);
      sum = Fma(v, v, sum);
    }
    const float mean = Sum(sum) / static_cast<float>(cols);
    const Vec scale = Set(1.0f / __builtin_sqrtf(mean + epsilon));
    for (int64_t i = 0; i < whole; i += kLanes) {
      Store(yr + i, Mul(Mul(Load(xr + i), scale), Load(weight + i)));
    }
    if (whole < cols) {
      const int64_t n = cols - whole;
      StorePart(yr + whole, n,
                Mul(Mul(LoadPart(xr + whole, n), scale), LoadPart(weight + whole, n)));
    }
  }
}

}  // namespace ripplekv::RIPPLEKV_ISA
