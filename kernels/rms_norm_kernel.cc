#include "kernels/isa_functions.h"
#include "kernels/simd.h"

namespace ripplekv::RIPPLEKV_ISA {
namespace {

RIPPLEKV_INLINE void Put(float* y, Vec a) { Store(y, a); }
RIPPLEKV_INLINE void Put(uint16_t* y, Vec a) { StoreBf16(y, a); }

template <typename T>
RIPPLEKV_INLINE void Normalize(const float* x, const float* weight, int64_t cols, float epsilon,
                               T* y, int64_t row_begin, int64_t row_end) {
  const int64_t whole = cols / kLanes * kLanes;
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* xr = x + row * cols;
    T* yr = y + row * cols;
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
      Put(yr + i, Mul(Mul(Load(xr + i), scale), Load(weight + i)));
    }
    if (whole < cols) {
      const int64_t n = cols - whole;
      T last[kLanes];
      Put(last, Mul(Mul(LoadPart(xr + whole, n), scale), LoadPart(weight + whole, n)));
      for (int64_t i = 0; i < n; ++i) yr[whole + i] = last[i];
    }
  }
}

}  // namespace

void RmsNorm(const float* x, const float* weight, int64_t cols, float epsilon, float* y,
             int64_t row_begin, int64_t row_end) {
  Normalize(x, weight, cols, epsilon, y, row_begin, row_end);
}

void RmsNormBf16(const float* x, const float* weight, int64_t cols, float epsilon, uint16_t* y,
                 int64_t row_begin, int64_t row_end) {
  Normalize(x, weight, cols, epsilon, y, row_begin, row_end);
}

}  // namespace ripplekv::RIPPLEKV_ISA
