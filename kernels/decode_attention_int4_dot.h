// Blocks of int4 rows by AVX512-VNNI, two groups of channels at a time: a unit, 32 bytes a row.
// Lanes hold the first and the second group's alternately, as rows' scales and minima lie.
//
// Queries and weights are integers of 16 bits. Those of queries are in units of their largest
// magnitude / 32512, those of a block's weights in units of a power of two, of which the largest
// has 16384 or more. Integers sum up exactly, in any order.
#pragma once

#include "kernels/decode_attention_integers.h"
#include "kernels/word_dots.h"

namespace ripplekv::RIPPLEKV_ISA {

/// Where the channels of two groups come from in a query's order (DotRows::PrepareQuery): nibble n
/// of a row's word w has channel 2 w + n / 2 of the first or (n odd) the second 16 of its group.
struct Int4QueryOrder {
  uint16_t at[2 * kChunk] = {};

  constexpr Int4QueryOrder() {
    int i = 0;
    for (int dword = 0; dword < 4; ++dword) {
      for (int n = 0; n < 4; ++n) {
        for (int group = 0; group < 2; ++group) {
          for (int word = 2 * dword; word < 2 * dword + 2; ++word) {
            at[i++] = static_cast<uint16_t>(group * kChunk + n % 2 * kLanes + 2 * word + n / 2);
          }
        }
      }
    }
  }
};

template <>
struct DotRows<KvType::kInt4> {
  static constexpr bool kWholeBlocks = true;
  static int QueryFloats(int head_dim) { return Units(head_dim) * kUnit; }

  /// For each unit the integers [4 dwords of a row][4 nibbles of a word][2 groups][2 words], then
  /// of all units the groups' sums of integers [2] as fp32, then a unit of the integers.
  static void PrepareQuery(const float* q, int head_dim, float scale, float* out) {
    const QueryScale by = QueryScaleOf(q, head_dim, scale);
    const int units = Units(head_dim);
    for (int u = 0; u < units; ++u) {
      alignas(64) int16_t x[kUnit];
      for (int group = 0; group < 2; ++group) {
        const int c = group * kChunk;
        const __m512i a = by.Integers(u * kUnit + c), b = by.Integers(u * kUnit + c + kLanes);
        _mm256_store_si256(reinterpret_cast<__m256i*>(x + c), _mm512_cvtepi32_epi16(a));
        _mm256_store_si256(reinterpret_cast<__m256i*>(x + c + kLanes), _mm512_cvtepi32_epi16(b));
        Sums(out, units)[2 * u + group] =
            static_cast<float>(_mm512_reduce_add_epi32(_mm512_add_epi32(a, b)));
      }
      alignas(64) static constexpr Int4QueryOrder kOrder;
      const __m512i first = _mm512_load_si512(x), second = _mm512_load_si512(x + kChunk);
      for (int half = 0; half < 2; ++half) {
        _mm512_storeu_si512(
            out + u * kUnit / 2 + half * kLanes,
            _mm512_permutex2var_epi16(first, _mm512_load_si512(kOrder.at + half * kChunk), second));
      }
    }
    Sums(out, units)[2 * units] = by.unit;
  }

  template <int queries>
  static void Score(const Block& keys, int head_dim, const float* q, float (*scores)[kBlockRows],
                    Ahead& ahead) {
    if (Groups(head_dim) == 2) {
      ScoreRows<queries, true>(keys, head_dim, q, scores, ahead);
    } else {
      ScoreRows<queries, false>(keys, head_dim, q, scores, ahead);
    }
  }

  /// For each unit the values' sums by [4 nibbles of a word][16 lanes], then for each group the
  /// lanes [16] of its minima's sum.
  static int SumFloats(int head_dim) { return Units(head_dim) * (kUnit + 2 * kLanes); }

  template <int queries>
  static void Weigh(const Block& values, int head_dim, const float (*p)[kBlockRows], float* sums,
                    Ahead& ahead) {
    if (Groups(head_dim) == 2) {
      WeighRows<queries, true>(values, head_dim, p, sums, ahead);
    } else {
      WeighRows<queries, false>(values, head_dim, p, sums, ahead);
    }
  }

  static void Finish(const float* sums, int head_dim, float* out) {
    const int units = Units(head_dim);
    const float* minima = sums + units * kUnit;
    for (int c = 0; c < head_dim; c += kLanes) {
      const int unit = c / kUnit, group = c % kUnit / kChunk, half = c % kChunk / kLanes;
      // Nibble `half` has the even channels, nibble `half` + 2 the odd ones.
      const __m512i order = _mm512_add_epi32(
          _mm512_set_epi32(30, 14, 28, 12, 26, 10, 24, 8, 22, 6, 20, 4, 18, 2, 16, 0),
          _mm512_set1_epi32(group));
      const float* from = sums + unit * kUnit + half * kLanes;
      const __m512 x =
          _mm512_permutex2var_ps(_mm512_loadu_ps(from), order, _mm512_loadu_ps(from + 2 * kLanes));
      const float minimum = Sum(Load(minima + (2 * unit + group) * kLanes));
      _mm512_mask_storeu_ps(out + c, FirstLanes(head_dim - c),
                            _mm512_add_ps(x, _mm512_set1_ps(minimum)));
    }
  }

 private:
  static constexpr int kUnit = 2 * kChunk;  // channels

  static RIPPLEKV_INLINE constexpr int Groups(int head_dim) {
    return (head_dim + kChunk - 1) / kChunk;
  }
  static RIPPLEKV_INLINE constexpr int Units(int head_dim) {
    return (head_dim + kUnit - 1) / kUnit;
  }
  static RIPPLEKV_INLINE float* Sums(float* q, int units) { return q + units * kUnit / 2; }
  static RIPPLEKV_INLINE const float* Sums(const float* q, int units) {
    return q + units * kUnit / 2;
  }

  /// Where a unit of a block's rows lies; `whole` if there is just one unit of two groups.
  template <bool whole>
  struct UnitRows {
    const std::byte* data;
    const std::byte* params;
    int64_t row_bytes;
    int groups;
    bool both;  // there is a second group

    RIPPLEKV_INLINE UnitRows(const Block& rows, int head_dim, int unit)
        : data(rows.data + unit * kUnit / 2),
          params(rows.params + 8 * unit),
          row_bytes(Groups(head_dim) * kChunk / 2),
          groups(Groups(head_dim)),
          both(2 * unit + 1 < groups) {}

    /// Rows r and r + 1.
    RIPPLEKV_INLINE __m512i Two(int r) const {
      if constexpr (whole) return _mm512_loadu_si512(data + r * (kUnit / 2));
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
  static RIPPLEKV_INLINE __m512 Scales(__m512i params) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(params, 16));
  }
  static RIPPLEKV_INLINE __m512 Minima(__m512i params) {
    return _mm512_castsi512_ps(
        _mm512_and_si512(params, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  /// The even lanes of a, then of b; `odd` = 1: the odd ones.
  static RIPPLEKV_INLINE __m512i EverySecond(__m512i a, __m512i b, int odd) {
    const __m512i even =
        _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    return _mm512_permutex2var_epi32(a, _mm512_add_epi32(even, _mm512_set1_epi32(odd)), b);
  }

  /// x[i] = dword i of both groups of eight rows from r on.
  template <bool whole>
  static RIPPLEKV_INLINE void LoadDwords(const UnitRows<whole>& rows, int r, __m512i (&x)[4]) {
    const __m512i first =
        _mm512_set_epi32(29, 25, 21, 17, 13, 9, 5, 1, 28, 24, 20, 16, 12, 8, 4, 0);
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

  /// sum += dwords [dword, dword + dwords) of 16 rows times those of the queries.
  template <int dword, int dwords, int queries>
  static RIPPLEKV_INLINE void DotDwords(const __m512i (&x)[2][4], const float* q, int64_t stride,
                                        __m512i (&sum)[2][queries]) {
    Unroll<dwords>([&](auto j) RIPPLEKV_INLINE_LAMBDA {
      constexpr int i = dword + j.value;
      Unroll<4>([&](auto n) RIPPLEKV_INLINE_LAMBDA {
        const __m512i a = NibbleWords<n.value>(x[0][i]);
        const __m512i b = NibbleWords<n.value>(x[1][i]);
        Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
          const __m512i query =
              _mm512_set1_epi64(LoadAs<int64_t>(q + g.value * stride + (4 * i + n.value) * 2));
          DotWords(sum[0][g.value], a, query);
          DotWords(sum[1][g.value], b, query);
        });
      });
    });
  }

  /// score += a unit's part of 16 rows from r on; sums: of the first query's integers.
  template <int queries, bool whole>
  static RIPPLEKV_INLINE void AddScores(const UnitRows<whole>& rows, int r, const float* sums,
                                        int64_t stride, const __m512i (&sum)[2][queries],
                                        __m512 (&score)[2][queries]) {
    Unroll<2>([&](auto v) RIPPLEKV_INLINE_LAMBDA {
      const __m512i params = rows.Params(r + 8 * v.value);
      Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
        const __m512 total =
            _mm512_castpd_ps(_mm512_set1_pd(LoadAs<double>(sums + g.value * stride)));
        __m512& s = score[v.value][g.value];
        s = _mm512_fmadd_ps(Minima(params), total, s);
        s = _mm512_fmadd_ps(Scales(params), _mm512_cvtepi32_ps(sum[v.value][g.value]), s);
      });
    });
  }

  template <int queries, bool whole>
  static RIPPLEKV_INLINE void ScoreRows(const Block& keys, int head_dim, const float* q,
                                        float (*scores)[kBlockRows], Ahead& ahead) {
    const int units = Units(head_dim);
    const int64_t stride = units * kUnit;
    __m512 score[2][2][queries];
    Unroll<4 * queries>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
      score[i.value % 2][i.value / 2 % 2][i.value / 4] = _mm512_setzero_ps();
    });
    for (int u = 0; u < units; ++u) {
      const UnitRows<whole> rows(keys, head_dim, u);
      const float* const query = q + u * kUnit / 2;
      const float* const sums = Sums(q, units) + 2 * u;
      __m512i x[2][2][4], sum[2][2][queries];
      Unroll<4 * queries>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
        sum[i.value % 2][i.value / 2 % 2][i.value / 4] = _mm512_setzero_si512();
      });
      // The first and the second 16 rows overlap: neither waits for the other's beginning or end.
      LoadDwords(rows, 0, x[0][0]);
      LoadDwords(rows, 8, x[0][1]);
      if (u == 0) ahead.Next(kLanes);
      DotDwords<0, 3, queries>(x[0], query, stride, sum[0]);
      LoadDwords(rows, kLanes, x[1][0]);
      LoadDwords(rows, kLanes + 8, x[1][1]);
      DotDwords<3, 1, queries>(x[0], query, stride, sum[0]);
      if (u == 0) ahead.Next(kLanes);
      DotDwords<0, 1, queries>(x[1], query, stride, sum[1]);
      AddScores<queries>(rows, 0, sums, stride, sum[0], score[0]);
      DotDwords<1, 3, queries>(x[1], query, stride, sum[1]);
      AddScores<queries>(rows, kLanes, sums, stride, sum[1], score[1]);
    }
    Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
      const __m512 unit = _mm512_set1_ps(Sums(q + g.value * stride, units)[2 * units]);
      Unroll<2>([&](auto half) RIPPLEKV_INLINE_LAMBDA {
        const __m512i a = _mm512_castps_si512(score[half.value][0][g.value]);
        const __m512i b = _mm512_castps_si512(score[half.value][1][g.value]);
        const __m512 both = _mm512_add_ps(_mm512_castsi512_ps(EverySecond(a, b, 0)),
                                          _mm512_castsi512_ps(EverySecond(a, b, 1)));
        _mm512_storeu_ps(scores[g.value] + half.value * kLanes, _mm512_mul_ps(both, unit));
      });
    });
  }

  /// A block's weights of a query and a unit as integers: [16 pairs of rows][2 groups][2 rows].
  struct Weights {
    alignas(64) int16_t pairs[4 * kBlockRows / 2];
    float unit[2];  // NaN if a weight is not finite

    /// p: of rows 0 to 15 and 16 to 31, scale: of each group the same.
    RIPPLEKV_INLINE void Set(const __m512 (&p)[2], const __m512 (&scale)[2][2]) {
      __m512 w[2][2];
      __m512i most[2];
      Unroll<2>([&](auto group) RIPPLEKV_INLINE_LAMBDA {
        __m512(&x)[2] = w[group.value];
        Unroll<2>([&](auto v) RIPPLEKV_INLINE_LAMBDA {
          x[v.value] = _mm512_mul_ps(p[v.value], scale[group.value][v.value]);
        });
        // Magnitudes order as their bits do, what is not finite above all others.
        most[group.value] = _mm512_max_epu32(_mm512_castps_si512(x[0]), _mm512_castps_si512(x[1]));
      });
      // In all even lanes the first group's largest, in the odd ones the second's.
      __m512i largest = _mm512_max_epu32(_mm512_unpacklo_epi32(most[0], most[1]),
                                         _mm512_unpackhi_epi32(most[0], most[1]));
      largest = _mm512_max_epu32(largest, _mm512_shuffle_epi32(largest, _MM_PERM_BADC));
      largest = _mm512_max_epu32(largest, _mm512_shuffle_i32x4(largest, largest, 0xb1));
      largest = _mm512_max_epu32(largest, _mm512_shuffle_i32x4(largest, largest, 0x4e));
      const __m512i exponent = _mm512_and_si512(largest, _mm512_set1_epi32(0x7f800000));
      const __mmask16 usable =
          _mm512_cmpge_epu32_mask(largest, _mm512_castps_si512(_mm512_set1_ps(kLeastScale)));
      const __mmask16 bad = _mm512_cmpge_epu32_mask(largest, _mm512_set1_epi32(0x7f800000));
      const __m512i units = _mm512_mask_mov_epi32(
          _mm512_maskz_sub_epi32(usable, exponent, _mm512_set1_epi32(14 << 23)), bad,
          _mm512_set1_epi32(0x7fc00000));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(unit), _mm512_castsi512_si128(units));
      // 2^14 / 2^exponent
      const __m512 inverse = _mm512_castsi512_ps(_mm512_maskz_sub_epi32(
          usable, _mm512_set1_epi32(static_cast<int>((127u + 127 + 14) << 23)), exponent));
      const __m512 of_group[2] = {_mm512_moveldup_ps(inverse), _mm512_movehdup_ps(inverse)};
      __m512i rows[2];
      Unroll<2>([&](auto group) RIPPLEKV_INLINE_LAMBDA {
        const auto integers = [&](__m512 x) RIPPLEKV_INLINE_LAMBDA {
          return _mm512_cvtps_epi32(_mm512_mul_ps(x, of_group[group.value]));
        };
        // Rows 4 i ... 4 i + 3 and 16 + 4 i ... 16 + 4 i + 3 in quarter i.
        rows[group.value] =
            _mm512_packs_epi32(integers(w[group.value][0]), integers(w[group.value][1]));
      });
      _mm512_store_si512(pairs, _mm512_unpacklo_epi32(rows[0], rows[1]));
      _mm512_store_si512(pairs + kBlockRows, _mm512_unpackhi_epi32(rows[0], rows[1]));
    }
  };

  template <int queries, bool whole>
  static RIPPLEKV_INLINE void WeighRows(const Block& values, int head_dim,
                                        const float (*p)[kBlockRows], float* sums, Ahead& ahead) {
    const int units = Units(head_dim);
    const int64_t stride = SumFloats(head_dim);
    for (int u = 0; u < units; ++u) {
      const UnitRows<whole> rows(values, head_dim, u);
      Weights weights[queries];
      __m512 scale[2][2], minimum[2][2];
      Unroll<2>([&](auto v) RIPPLEKV_INLINE_LAMBDA {
        const __m512i a = rows.Params(v.value * kLanes), b = rows.Params(v.value * kLanes + 8);
        Unroll<2>([&](auto group) RIPPLEKV_INLINE_LAMBDA {
          const __m512i params = EverySecond(a, b, group.value);
          scale[group.value][v.value] = Scales(params);
          minimum[group.value][v.value] = Minima(params);
        });
      });
      Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
        const __m512 weight[2] = {Load(p[g.value]).v, Load(p[g.value] + kLanes).v};
        weights[g.value].Set(weight, scale);
        float* const minima = sums + g.value * stride + units * kUnit + u * 2 * kLanes;
        Unroll<2>([&](auto group) RIPPLEKV_INLINE_LAMBDA {
          float* const to = minima + group.value * kLanes;
          _mm512_storeu_ps(to, _mm512_fmadd_ps(weight[0], minimum[group.value][0],
                                               _mm512_fmadd_ps(weight[1], minimum[group.value][1],
                                                               _mm512_loadu_ps(to))));
        });
      });
      __m512i sum[queries][4];
      Unroll<4 * queries>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
        sum[i.value / 4][i.value % 4] = _mm512_setzero_si512();
      });
      // Word w of group g of both rows becomes dword 2 w + g.
      const __m512i order =
          _mm512_set_epi16(31, 15, 23, 7, 30, 14, 22, 6, 29, 13, 21, 5, 28, 12, 20, 4, 27, 11, 19,
                           3, 26, 10, 18, 2, 25, 9, 17, 1, 24, 8, 16, 0);
      for (int r = 0; r < kBlockRows; r += 2) {
        if (u == 0 && r % 8 == 0) ahead.Next(8);
        const __m512i both = _mm512_permutexvar_epi16(order, rows.Two(r));
        __m512i weight[queries];
        Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
          weight[g.value] = _mm512_set1_epi64(LoadAs<int64_t>(weights[g.value].pairs + 2 * r));
        });
        Unroll<4>([&](auto n) RIPPLEKV_INLINE_LAMBDA {
          const __m512i x = NibbleWords<n.value>(both);
          Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
            DotWords(sum[g.value][n.value], x, weight[g.value]);
          });
        });
      }
      Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
        const __m512 unit = _mm512_castpd_ps(_mm512_set1_pd(LoadAs<double>(weights[g.value].unit)));
        Unroll<4>([&](auto n) RIPPLEKV_INLINE_LAMBDA {
          float* const to = sums + g.value * stride + u * kUnit + n.value * kLanes;
          _mm512_storeu_ps(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[g.value][n.value]), unit,
                                               _mm512_loadu_ps(to)));
        });
      });
    }
  }
};

}  // namespace ripplekv::RIPPLEKV_ISA
