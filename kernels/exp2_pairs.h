// Powers of two as pairs of bf16. Per instruction set, like simd.h.
#pragma once

#include "kernels/simd.h"

namespace ripplekv::RIPPLEKV_ISA {

constexpr float kUnit = 256;  // of the arguments' fixed point numbers
constexpr float kHalf = 128;

/// 2^(even / kUnit - kHalf) and 2^(odd / kUnit - kHalf) as the low and high bf16 of 32 bits. The
/// argument rounded to a fixed point number nearly is the result's exponent and mantissa: a table
/// corrects the mantissa, to 0.2 % (root mean square; 0.6 % at most). 0 for arguments below 1, the
/// largest finite number for those that are too large.
RIPPLEKV_INLINE __m512i Exp2Pair(__m512 even, __m512 odd) {
  // kUnit (f - 2^f + 1) by the top six bits of the fraction f, and kUnit, by which the exponent's
  // bias is less than kHalf.
  alignas(64) static constexpr int16_t kCorrection[64] = {
      256, 257, 258, 260, 260, 262, 263, 264, 265, 266, 266, 268, 268, 269, 270, 271,
      271, 272, 273, 273, 274, 274, 275, 275, 276, 276, 276, 277, 277, 277, 277, 277,
      277, 278, 278, 277, 277, 277, 277, 277, 277, 276, 276, 275, 275, 275, 274, 273,
      273, 272, 271, 271, 269, 269, 268, 267, 265, 265, 263, 262, 261, 259, 258, 257};
  const __m512i interleave = _mm512_set4_epi32(0x0f0e0706, 0x0d0c0504, 0x0b0a0302, 0x09080100);
  const __m512i x = _mm512_shuffle_epi8(
      _mm512_packus_epi32(_mm512_cvtps_epi32(even), _mm512_cvtps_epi32(odd)), interleave);
  const __m512i correction = _mm512_permutex2var_epi16(
      _mm512_load_si512(kCorrection), _mm512_srli_epi16(x, 2), _mm512_load_si512(kCorrection + 32));
  return _mm512_srli_epi16(_mm512_subs_epu16(x, correction), 1);
}

}  // namespace ripplekv::RIPPLEKV_ISA
