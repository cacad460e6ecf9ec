// Pairs of bf16 in 32 bits, as AVX512-BF16 multiplies them. Per instruction set, like simd.h.
#pragma once

#include "kernels/simd.h"

namespace ripplekv::RIPPLEKV_ISA {

RIPPLEKV_INLINE __m512bh LoadPairs(const uint32_t* p) { return (__m512bh)_mm512_loadu_si512(p); }
RIPPLEKV_INLINE __m512bh BroadcastPair(const void* p) {
  return (__m512bh)_mm512_set1_epi32(LoadAs<int32_t>(p));
}

/// a[lane] and b[lane] as the low and high bf16 of 32 bits.
RIPPLEKV_INLINE __m512i PairOf(__m512 a, __m512 b) {
  const __m512i interleave =
      _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                       21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(interleave, (__m512i)_mm512_cvtne2ps_pbh(b, a));
}

/// x[i][j] becomes x[j][i].
RIPPLEKV_INLINE void Transpose(__m512i (&x)[kLanes]) {
  __m512i y[kLanes];
  Unroll<8>([&](auto n) RIPPLEKV_INLINE_LAMBDA {
    constexpr int i = 2 * n.value;
    y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  });
  Unroll<4>([&](auto n) RIPPLEKV_INLINE_LAMBDA {
    constexpr int i = 4 * n.value;
    x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
    x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
    x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
    x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
  });
  // x[4 a + b] holds, in quarter c, rows 4 a ... 4 a + 3 of column 4 c + b.
  Unroll<4>([&](auto n) RIPPLEKV_INLINE_LAMBDA {
    constexpr int b = n.value;
    const __m512i low = _mm512_shuffle_i32x4(x[b], x[4 + b], 0x44);
    const __m512i high = _mm512_shuffle_i32x4(x[b], x[4 + b], 0xee);
    const __m512i low2 = _mm512_shuffle_i32x4(x[8 + b], x[12 + b], 0x44);
    const __m512i high2 = _mm512_shuffle_i32x4(x[8 + b], x[12 + b], 0xee);
    y[b] = _mm512_shuffle_i32x4(low, low2, 0x88);
    y[4 + b] = _mm512_shuffle_i32x4(low, low2, 0xdd);
    y[8 + b] = _mm512_shuffle_i32x4(high, high2, 0x88);
    y[12 + b] = _mm512_shuffle_i32x4(high, high2, 0xdd);
  });
  Unroll<kLanes>([&](auto i) RIPPLEKV_INLINE_LAMBDA { x[i.value] = y[i.value]; });
}

}  // namespace ripplekv::RIPPLEKV_ISA
