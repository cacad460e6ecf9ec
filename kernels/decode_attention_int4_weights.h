// Weights of int4 values as integers of 16 bits, in units of a power of two of which the largest of
// a block and group has 16384 or more. Per instruction set, like simd.h.
#pragma once

#include "kernels/decode_attention_dot.h"

namespace ripplekv::RIPPLEKV_ISA {

/// All even lanes of x[i] become the largest even one, all odd lanes the largest odd one.
template <int n>
RIPPLEKV_INLINE void SpreadLargest(__m512i (&x)[n]) {
  const auto fold = [&](const auto& shuffle) RIPPLEKV_INLINE_LAMBDA {
    Unroll<n>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
      x[i.value] = _mm512_max_epu32(x[i.value], shuffle(x[i.value]));
    });
  };
  fold([](__m512i y) RIPPLEKV_INLINE_LAMBDA { return _mm512_shuffle_epi32(y, _MM_PERM_BADC); });
  fold([](__m512i y) RIPPLEKV_INLINE_LAMBDA { return _mm512_shuffle_i32x4(y, y, 0xb1); });
  fold([](__m512i y) RIPPLEKV_INLINE_LAMBDA { return _mm512_shuffle_i32x4(y, y, 0x4e); });
}

/// A block's weights of some queries and a unit as integers.
template <int queries>
struct Int4Weights {
  alignas(64) int16_t pairs[queries][4 * kBlockRows / 2];  // [16 pairs of rows][2 groups][2 rows]
  float unit[queries][2];  // of each group, NaN if a weight is not finite

  /// p: of rows 0 to 15 and 16 to 31, scale: of each group the same. Step by step for all
  /// queries, see ExpOfScores.
  RIPPLEKV_INLINE void Set(const __m512 (&p)[queries][2], const __m512 (&scale)[2][2]) {
    __m512 w[queries][2][2];
    __m512i largest[queries];
    // Magnitudes order as their bits do, what is not finite above all others.
    Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
      __m512i most[2];
      Unroll<2>([&](auto group) RIPPLEKV_INLINE_LAMBDA {
        __m512(&x)[2] = w[g.value][group.value];
        Unroll<2>([&](auto v) RIPPLEKV_INLINE_LAMBDA {
          x[v.value] = _mm512_mul_ps(p[g.value][v.value], scale[group.value][v.value]);
        });
        most[group.value] = _mm512_max_epu32(_mm512_castps_si512(x[0]), _mm512_castps_si512(x[1]));
      });
      // In all even lanes the first group's largest, in the odd ones the second's.
      largest[g.value] = _mm512_max_epu32(_mm512_unpacklo_epi32(most[0], most[1]),
                                          _mm512_unpackhi_epi32(most[0], most[1]));
    });
    SpreadLargest(largest);
    __m512 inverse[queries];
    Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
      const __m512i exponent = _mm512_and_si512(largest[g.value], _mm512_set1_epi32(0x7f800000));
      const __mmask16 usable = _mm512_cmpge_epu32_mask(
          largest[g.value], _mm512_castps_si512(_mm512_set1_ps(kLeastScale)));
      const __mmask16 bad =
          _mm512_cmpge_epu32_mask(largest[g.value], _mm512_set1_epi32(0x7f800000));
      const __m512i units = _mm512_mask_mov_epi32(
          _mm512_maskz_sub_epi32(usable, exponent, _mm512_set1_epi32(14 << 23)), bad,
          _mm512_set1_epi32(0x7fc00000));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(unit[g.value]), _mm512_castsi512_si128(units));
      // 2^14 / 2^exponent
      inverse[g.value] = _mm512_castsi512_ps(_mm512_maskz_sub_epi32(
          usable, _mm512_set1_epi32(static_cast<int>((127u + 127 + 14) << 23)), exponent));
    });
    Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
      const __m512 of_group[2] = {_mm512_moveldup_ps(inverse[g.value]),
                                  _mm512_movehdup_ps(inverse[g.value])};
      __m512i rows[2];
      Unroll<2>([&](auto group) RIPPLEKV_INLINE_LAMBDA {
        const auto integers = [&](__m512 x) RIPPLEKV_INLINE_LAMBDA {
          return _mm512_cvtps_epi32(_mm512_mul_ps(x, of_group[group.value]));
        };
        // Rows 4 i ... 4 i + 3 and 16 + 4 i ... 16 + 4 i + 3 in quarter i.
        rows[group.value] = _mm512_packs_epi32(integers(w[g.value][group.value][0]),
                                               integers(w[g.value][group.value][1]));
      });
      _mm512_store_si512(pairs[g.value], _mm512_unpacklo_epi32(rows[0], rows[1]));
      _mm512_store_si512(pairs[g.value] + kBlockRows, _mm512_unpackhi_epi32(rows[0], rows[1]));
    });
  }
};

}  // namespace ripplekv::RIPPLEKV_ISA
