// Sums of outer products in fp32: lanes of a panel times numbers that are broadcast to them, so
// that nothing is summed across lanes. Per instruction set, like simd.h.
#pragma once

#include "kernels/simd.h"

namespace ripplekv::RIPPLEKV_ISA {

/// Rows whose sums stay in registers: enough for a core's multipliers to be busy.
#if defined(__AVX512F__)
inline constexpr int kRowTile = 12;
#elif defined(__AVX2__)
inline constexpr int kRowTile = 6;
#else
inline constexpr int kRowTile = 2;
#endif

/// sums[i] += x[i * row + j * step] * panel[j], over j < n in order, for rows i < rows.
template <int rows>
RIPPLEKV_INLINE void AddTile(const float* panel, int64_t n, const float* x, int64_t row,
                             int64_t step, float (*sums)[kLanes]) {
  Vec s[rows];
  Unroll<rows>([&](auto i) RIPPLEKV_INLINE_LAMBDA { s[i.value] = Load(sums[i.value]); });
  for (const float* const end = panel + n * kLanes; panel != end; panel += kLanes, x += step) {
    const Vec lanes = Load(panel);
    Unroll<rows>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
      s[i.value] = Fma(Set(x[i.value * row]), lanes, s[i.value]);
    });
  }
  Unroll<rows>([&](auto i) RIPPLEKV_INLINE_LAMBDA { Store(sums[i.value], s[i.value]); });
}

/// The same for any number of rows.
RIPPLEKV_INLINE void AddOuterProducts(const float* panel, int64_t n, const float* x, int64_t row,
                                      int64_t step, int rows, float (*sums)[kLanes]) {
  int i = 0;
  for (; i + kRowTile <= rows; i += kRowTile) {
    AddTile<kRowTile>(panel, n, x + i * row, row, step, sums + i);
  }
  if constexpr (kRowTile > 8) {
    if (i + 8 <= rows) {
      AddTile<8>(panel, n, x + i * row, row, step, sums + i);
      i += 8;
    }
  }
  if constexpr (kRowTile > 4) {
    if (i + 4 <= rows) {
      AddTile<4>(panel, n, x + i * row, row, step, sums + i);
      i += 4;
    }
  }
  if constexpr (kRowTile > 2) {
    if (i + 2 <= rows) {
      AddTile<2>(panel, n, x + i * row, row, step, sums + i);
      i += 2;
    }
  }
  if (i < rows) AddTile<1>(panel, n, x + i * row, row, step, sums + i);
}

/// out = n bf16 numbers as floats.
RIPPLEKV_INLINE void WidenBf16(const uint16_t* x, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(out + i, LoadBf16(x + i));
  for (; i < n; ++i) {
    const uint32_t bits = static_cast<uint32_t>(LoadAs<uint16_t>(x + i)) << 16;
    out[i] = LoadAs<float>(&bits);
  }
}

}  // namespace ripplekv::RIPPLEKV_ISA
