// Blocks of int4 rows, two groups of channels at a time: a unit, 32 bytes a row. Lanes hold the
// first and the second group's alternately, as rows' scales and minima lie. Per instruction set,
// like simd.h.
#pragma once

#include "kernels/decode_attention_dot.h"

namespace ripplekv::RIPPLEKV_ISA {

inline constexpr int kInt4Unit = 2 * kChunk;  // channels

RIPPLEKV_INLINE constexpr int Int4Groups(int head_dim) { return (head_dim + kChunk - 1) / kChunk; }
RIPPLEKV_INLINE constexpr int Int4Units(int head_dim) {
  return (head_dim + kInt4Unit - 1) / kInt4Unit;
}

/// Where a unit of a block's rows lies; `whole` if there is just one unit of two groups.
template <bool whole>
struct Int4Rows {
  const std::byte* data;
  const std::byte* params;
  int64_t row_bytes;
  int groups;
  bool both;  // there is a second group

  RIPPLEKV_INLINE Int4Rows(const Block& rows, int head_dim, int unit)
      : data(rows.data + unit * kInt4Unit / 2),
        params(rows.params + 8 * unit),
        row_bytes(Int4Groups(head_dim) * kChunk / 2),
        groups(Int4Groups(head_dim)),
        both(2 * unit + 1 < groups) {}

  /// Rows r and r + 1.
  RIPPLEKV_INLINE __m512i Two(int r) const {
    if constexpr (whole) return _mm512_loadu_si512(data + r * (kInt4Unit / 2));
    const std::byte* at = data + r * row_bytes;
    const __mmask8 there = both ? 15 : 3;
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_maskz_loadu_epi64(there, at)),
                              _mm256_maskz_loadu_epi64(there, at + row_bytes), 1);
  }
  /// Scales and minima of eight rows from r on.
  RIPPLEKV_INLINE __m512i Params(int r) const {
    if constexpr (whole) return _mm512_loadu_si512(params + 8 * r);
    const __m512i row = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    const __m512i group = _mm512_set_epi32(1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0);
    return _mm512_mask_i32gather_epi32(
        _mm512_setzero_si512(), both ? 0xffff : 0x5555,
        _mm512_add_epi32(_mm512_mullo_epi32(row, _mm512_set1_epi32(groups)), group),
        params + static_cast<int64_t>(r) * groups * 4, 4);
  }
};
RIPPLEKV_INLINE __m512 Scales(__m512i params) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(params, 16));
}
RIPPLEKV_INLINE __m512 Minima(__m512i params) {
  return _mm512_castsi512_ps(
      _mm512_and_si512(params, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}
/// The even lanes of a, then of b; `odd` = 1: the odd ones.
RIPPLEKV_INLINE __m512i EverySecond(__m512i a, __m512i b, int odd) {
  const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  return _mm512_permutex2var_epi32(a, _mm512_add_epi32(even, _mm512_set1_epi32(odd)), b);
}

/// x[i] = dword i of both groups of eight rows from r on.
template <bool whole>
RIPPLEKV_INLINE void LoadInt4Dwords(const Int4Rows<whole>& rows, int r, __m512i (&x)[4]) {
  const __m512i first = _mm512_set_epi32(29, 25, 21, 17, 13, 9, 5, 1, 28, 24, 20, 16, 12, 8, 4, 0);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(2));
  const __m512i a = rows.Two(r), b = rows.Two(r + 2), c = rows.Two(r + 4), d = rows.Two(r + 6);
  const __m512i ab = _mm512_permutex2var_epi32(a, first, b);
  const __m512i cd = _mm512_permutex2var_epi32(c, first, d);
  const __m512i ab2 = _mm512_permutex2var_epi32(a, second, b);
  const __m512i cd2 = _mm512_permutex2var_epi32(c, second, d);
  x[0] = _mm512_shuffle_i64x2(ab, cd, 0x44);
  x[1] = _mm512_shuffle_i64x2(ab, cd, 0xee);
  x[2] = _mm512_shuffle_i64x2(ab2, cd2, 0x44);
  x[3] = _mm512_shuffle_i64x2(ab2, cd2, 0xee);
}

}  // namespace ripplekv::RIPPLEKV_ISA
