// Dot products of pairs of 16-bit integers, and 4-bit numbers as such. Per instruction set, like
// simd.h; needs AVX512-VNNI.
#pragma once

#include "kernels/simd.h"

namespace ripplekv::RIPPLEKV_ISA {

/// sum += two products of signed 16-bit integers a lane. GCC 12 copies the accumulator of the
/// intrinsic through the stack.
RIPPLEKV_INLINE void DotWords(__m512i& sum, __m512i a, __m512i b) {
  asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
}

/// Bits [4 n, 4 n + 4) of every 16.
template <int n>
RIPPLEKV_INLINE __m512i NibbleWords(__m512i words) {
  if constexpr (n == 3) return _mm512_srli_epi16(words, 12);
  const __m512i shifted = n == 0 ? words : _mm512_srli_epi16(words, 4 * n);
  return _mm512_and_si512(shifted, _mm512_set1_epi16(15));
}

}  // namespace ripplekv::RIPPLEKV_ISA
