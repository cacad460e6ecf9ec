// Blocks of int4 rows by AVX512-VNNI. Queries are integers of 16 bits in units of their largest
// magnitude / 32512. Integers sum up exactly, in any order.
#pragma once

#include "kernels/decode_attention_int4_rows.h"
#include "kernels/decode_attention_int4_weights.h"
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
  static int QueryFloats(int head_dim) { return Int4Units(head_dim) * kInt4Unit; }

  /// For each unit the integers [4 dwords of a row][4 nibbles of a word][2 groups][2 words], then
  /// of all units the groups' sums of integers [2] as fp32, then a unit of the integers.
  static void PrepareQuery(const float* q, int head_dim, float scale, float* out) {
    const QueryScale by = QueryScaleOf(q, head_dim, scale);
    const int units = Int4Units(head_dim);
    for (int u = 0; u < units; ++u) {
      alignas(64) int16_t x[kInt4Unit];
      for (int group = 0; group < 2; ++group) {
        const int c = group * kChunk;
        const __m512i a = by.Integers(u * kInt4Unit + c),
                      b = by.Integers(u * kInt4Unit + c + kLanes);
        _mm256_store_si256(reinterpret_cast<__m256i*>(x + c), _mm512_cvtepi32_epi16(a));
        _mm256_store_si256(reinterpret_cast<__m256i*>(x + c + kLanes), _mm512_cvtepi32_epi16(b));
        Sums(out, units)[2 * u + group] =
            static_cast<float>(_mm512_reduce_add_epi32(_mm512_add_epi32(a, b)));
      }
      alignas(64) static constexpr Int4QueryOrder kOrder;
      const __m512i first = _mm512_load_si512(x), second = _mm512_load_si512(x + kChunk);
      for (int half = 0; half < 2; ++half) {
        _mm512_storeu_si512(
            out + u * kInt4Unit / 2 + half * kLanes,
            _mm512_permutex2var_epi16(first, _mm512_load_si512(kOrder.at + half * kChunk), second));
      }
    }
    Sums(out, units)[2 * units] = by.unit;
  }

  template <int queries>
  static void Score(const Block& keys, int head_dim, const float* q, float (*scores)[kBlockRows],
                    Ahead& ahead) {
    if (Int4Groups(head_dim) == 2) {
      ScoreRows<queries, true>(keys, head_dim, q, scores, ahead);
    } else {
      ScoreRows<queries, false>(keys, head_dim, q, scores, ahead);
    }
  }

  /// For each unit the values' sums by [4 nibbles of a word][16 lanes], then for each group the
  /// lanes [16] of its minima's sum.
  static int SumFloats(int head_dim) { return Int4Units(head_dim) * (kInt4Unit + 2 * kLanes); }

  template <int queries>
  static void Weigh(const Block& values, int head_dim, const float (*p)[kBlockRows], float* sums,
                    Ahead& ahead) {
    if (Int4Groups(head_dim) == 2) {
      WeighRows<queries, true>(values, head_dim, p, sums, ahead);
    } else {
      WeighRows<queries, false>(values, head_dim, p, sums, ahead);
    }
  }

  static void Finish(const float* sums, int head_dim, float* out) {
    const int units = Int4Units(head_dim);
    const float* minima = sums + units * kInt4Unit;
    for (int c = 0; c < head_dim; c += kLanes) {
      const int unit = c / kInt4Unit, group = c % kInt4Unit / kChunk, half = c % kChunk / kLanes;
      // Nibble `half` has the even channels, nibble `half` + 2 the odd ones.
      const __m512i order = _mm512_add_epi32(
          _mm512_set_epi32(30, 14, 28, 12, 26, 10, 24, 8, 22, 6, 20, 4, 18, 2, 16, 0),
          _mm512_set1_epi32(group));
      const float* from = sums + unit * kInt4Unit + half * kLanes;
      const __m512 x =
          _mm512_permutex2var_ps(_mm512_loadu_ps(from), order, _mm512_loadu_ps(from + 2 * kLanes));
      const float minimum = Sum(Load(minima + (2 * unit + group) * kLanes));
      _mm512_mask_storeu_ps(out + c, FirstLanes(head_dim - c),
                            _mm512_add_ps(x, _mm512_set1_ps(minimum)));
    }
  }

 private:
  static RIPPLEKV_INLINE float* Sums(float* q, int units) { return q + units * kInt4Unit / 2; }
  static RIPPLEKV_INLINE const float* Sums(const float* q, int units) {
    return q + units * kInt4Unit / 2;
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
  static RIPPLEKV_INLINE void AddScores(const Int4Rows<whole>& rows, int r, const float* sums,
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
    const int units = whole ? 1 : Int4Units(head_dim);
    const int64_t stride = units * kInt4Unit;
    __m512 score[2][2][queries];
    Unroll<4 * queries>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
      score[i.value % 2][i.value / 2 % 2][i.value / 4] = _mm512_setzero_ps();
    });
    for (int u = 0; u < units; ++u) {
      const Int4Rows<whole> rows(keys, head_dim, u);
      const float* const query = q + u * kInt4Unit / 2;
      const float* const sums = Sums(q, units) + 2 * u;
      __m512i x[2][2][4], sum[2][2][queries];
      Unroll<4 * queries>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
        sum[i.value % 2][i.value / 2 % 2][i.value / 4] = _mm512_setzero_si512();
      });
      // The first and the second 16 rows overlap: neither waits for the other's beginning or end.
      LoadInt4Dwords(rows, 0, x[0][0]);
      LoadInt4Dwords(rows, 8, x[0][1]);
      if (u == 0) ahead.Next(kLanes);
      DotDwords<0, 3, queries>(x[0], query, stride, sum[0]);
      LoadInt4Dwords(rows, kLanes, x[1][0]);
      LoadInt4Dwords(rows, kLanes + 8, x[1][1]);
      DotDwords<3, 1, queries>(x[0], query, stride, sum[0]);
      if (u == 0) ahead.Next(kLanes);
      DotDwords<0, 1, queries>(x[1], query, stride, sum[1]);
      AddScores<queries>(rows, 0, sums, stride, sum[0], score[0]);
      DotDwords<1, 1, queries>(x[1], query, stride, sum[1]);
      if (u + 1 == units) StoreScores<queries>(score[0], q, head_dim, scores, 0);
      DotDwords<2, 2, queries>(x[1], query, stride, sum[1]);
      AddScores<queries>(rows, kLanes, sums, stride, sum[1], score[1]);
    }
    StoreScores<queries>(score[1], q, head_dim, scores, kLanes);
  }

  /// Of 16 rows from r on: both groups of each together, in the query's unit.
  template <int queries>
  static RIPPLEKV_INLINE void StoreScores(const __m512 (&score)[2][queries], const float* q,
                                          int head_dim, float (*scores)[kBlockRows], int r) {
    const int units = Int4Units(head_dim);
    Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
      const __m512i a = _mm512_castps_si512(score[0][g.value]);
      const __m512i b = _mm512_castps_si512(score[1][g.value]);
      const __m512 both = _mm512_add_ps(_mm512_castsi512_ps(EverySecond(a, b, 0)),
                                        _mm512_castsi512_ps(EverySecond(a, b, 1)));
      const float unit = Sums(q + g.value * units * kInt4Unit, units)[2 * units];
      _mm512_storeu_ps(scores[g.value] + r, _mm512_mul_ps(both, _mm512_set1_ps(unit)));
    });
  }

  template <int queries, bool whole>
  static RIPPLEKV_INLINE void WeighRows(const Block& values, int head_dim,
                                        const float (*p)[kBlockRows], float* sums, Ahead& ahead) {
    const int units = Int4Units(head_dim);
    const int64_t stride = SumFloats(head_dim);
    for (int u = 0; u < units; ++u) {
      const Int4Rows<whole> rows(values, head_dim, u);
      Int4Weights<queries> weights;
      __m512 scale[2][2], minimum[2][2];
      Unroll<2>([&](auto v) RIPPLEKV_INLINE_LAMBDA {
        const __m512i a = rows.Params(v.value * kLanes), b = rows.Params(v.value * kLanes + 8);
        Unroll<2>([&](auto group) RIPPLEKV_INLINE_LAMBDA {
          const __m512i params = EverySecond(a, b, group.value);
          scale[group.value][v.value] = Scales(params);
          minimum[group.value][v.value] = Minima(params);
        });
      });
      __m512 weight[queries][2];
      Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
        weight[g.value][0] = Load(p[g.value]).v;
        weight[g.value][1] = Load(p[g.value] + kLanes).v;
      });
      weights.Set(weight, scale);
      Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
        float* const minima = sums + g.value * stride + units * kInt4Unit + u * 2 * kLanes;
        Unroll<2>([&](auto group) RIPPLEKV_INLINE_LAMBDA {
          float* const to = minima + group.value * kLanes;
          _mm512_storeu_ps(
              to, _mm512_fmadd_ps(weight[g.value][0], minimum[group.value][0],
                                  _mm512_fmadd_ps(weight[g.value][1], minimum[group.value][1],
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
          weight[g.value] = _mm512_set1_epi64(LoadAs<int64_t>(weights.pairs[g.value] + 2 * r));
        });
        Unroll<4>([&](auto n) RIPPLEKV_INLINE_LAMBDA {
          const __m512i x = NibbleWords<n.value>(both);
          Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
            DotWords(sum[g.value][n.value], x, weight[g.value]);
          });
        });
      }
      Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
        const __m512 unit = _mm512_castpd_ps(_mm512_set1_pd(LoadAs<double>(weights.unit[g.value])));
        Unroll<4>([&](auto n) RIPPLEKV_INLINE_LAMBDA {
          float* const to = sums + g.value * stride + u * kInt4Unit + n.value * kLanes;
          _mm512_storeu_ps(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[g.value][n.value]), unit,
                                               _mm512_loadu_ps(to)));
        });
      });
    }
  }
};

}  // namespace ripplekv::RIPPLEKV_ISA
