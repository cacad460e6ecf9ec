// Blocks of int4 rows by AVX512-VNNI.
#pragma once

#include "kernels/decode_attention_integers.h"

namespace ripplekv::RIPPLEKV_ISA {

inline constexpr int kMaxGroups = kDecodeAttentionMaxHeadDim / kKvGroup;

template <>
struct DotRows<KvType::kInt4> {
  static void PrepareQuery(const float* q, int head_dim, float scale, float* out) {
    PrepareIntegerQuery(q, head_dim, scale, out);
  }

  template <int queries>
  static void Score(const Block& keys, int head_dim, const float* q, float (*scores)[kBlockRows],
                    Ahead& ahead) {
    ahead.Next(kBlockRows);
    if (keys.count == kBlockRows) {
      ScoreRows<queries, 2, true>(keys, head_dim, q, scores);
    } else if (keys.count > kLanes) {
      ScoreRows<queries, 2, false>(keys, head_dim, q, scores);
    } else {
      ScoreRows<queries, 1, false>(keys, head_dim, q, scores);
    }
  }

  /// The values' sums [Padded], then for each group the lanes [16] of its minima's sum.
  static int SumFloats(int head_dim) { return Padded(head_dim) / 2 * 3; }

  template <int queries>
  static void Weigh(const Block& values, int head_dim, const float (*p)[kBlockRows], float* sums,
                    Ahead& ahead) {
    const int padded = Padded(head_dim);
    const int groups = padded / kChunk;
    const int64_t stride = SumFloats(head_dim);
    ahead.Next(kBlockRows);
    // Of all groups at first: none waits for another's.
    IntegerWeights<queries> weights[kMaxGroups];
    for (int c = 0; c < groups; ++c) {
      const __m512i a = LoadParams(values, groups, c, 0);
      const __m512i b = LoadParams(values, groups, c, kLanes);
      Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
        const __m512 p_a = Load(p[g.value]).v, p_b = Load(p[g.value] + kLanes).v;
        weights[c].Set(g.value, _mm512_mul_ps(p_a, Scales(a)), _mm512_mul_ps(p_b, Scales(b)));
        float* minima = sums + g.value * stride + padded + c * kLanes;
        _mm512_storeu_ps(minima,
                         _mm512_fmadd_ps(p_a, Minima(a),
                                         _mm512_fmadd_ps(p_b, Minima(b), _mm512_loadu_ps(minima))));
      });
    }
    for (int c = 0; c < groups; ++c) {
      __m512i sum[queries][2][2];
      Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
        Unroll<2>([&](auto v) RIPPLEKV_INLINE_LAMBDA {
          sum[g.value][v.value][0] = _mm512_setzero_si512();
          sum[g.value][v.value][1] = _mm512_setzero_si512();
        });
      });
      // Dword j of row a becomes dword a of quarter j; then byte b of dword a byte a of dword b.
      const __m512i dwords = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
      const __m512i bytes = _mm512_set4_epi32(0x0f0b0703, 0x0e0a0602, 0x0d090501, 0x0c080400);
      const __m512i nibble = _mm512_set1_epi8(15);
      const uint8_t* weight = weights[c].high[0];
      const auto add = [&](const std::byte* r0, const std::byte* r1, const std::byte* r2,
                           const std::byte* r3) RIPPLEKV_INLINE_LAMBDA {
        const __m512i rows =
            _mm512_shuffle_epi8(_mm512_permutexvar_epi32(dwords, Quarters(r0, r1, r2, r3)), bytes);
        const __m512i x[2] = {_mm512_and_si512(rows, nibble),
                              _mm512_and_si512(_mm512_srli_epi16(rows, 4), nibble)};
        Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
          const __m512i h = BroadcastDword(weight + g.value * kBlockRows);
          const __m512i l = BroadcastDword(weight + (queries + g.value) * kBlockRows);
          Unroll<2>([&](auto v) RIPPLEKV_INLINE_LAMBDA {
            DotBytes(sum[g.value][v.value][0], h, x[v.value]);
            DotBytes(sum[g.value][v.value][1], l, x[v.value]);
          });
        });
        weight += 4;
      };
      const int64_t step = padded / 2;
      const std::byte* row = values.data + c * (kChunk / 2);
      const std::byte* const last = row + (values.count - 1) * step;
      const uint8_t* const end = weight + values.count / 4 * 4;
      while (weight != end) {
        add(row, row + step, row + 2 * step, row + 3 * step);
        row += 4 * step;
      }
      if (row <= last) {  // those beyond it weigh nothing
        add(row, row + step < last ? row + step : last,
            row + 2 * step < last ? row + 2 * step : last, last);
      }
      Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
        Unroll<2>([&](auto v) RIPPLEKV_INLINE_LAMBDA {
          float* to = sums + g.value * stride + c * kChunk + v.value * kLanes;
          _mm512_storeu_ps(
              to, _mm512_fmadd_ps(Whole(sum[g.value][v.value][0], sum[g.value][v.value][1]),
                                  _mm512_set1_ps(weights[c].unit[g.value]), _mm512_loadu_ps(to)));
        });
      });
    }
  }

  static void Finish(const float* sums, int head_dim, float* out) {
    const float* minima = sums + Padded(head_dim);
    for (int c = 0; c < head_dim; c += kChunk, minima += kLanes) {
      const float minimum = Sum(Load(minima));
      for (int i = c; i < head_dim && i < c + kChunk; ++i) out[i] = sums[i] + minimum;
    }
  }

 private:
  /// The scales and minima of group c of 16 rows from `first` on, zeros beyond the last.
  static RIPPLEKV_INLINE __m512i LoadParams(const Block& rows, int groups, int c, int first) {
    const int count = rows.count - first;
    if (count <= 0) return _mm512_setzero_si512();
    const std::byte* at = rows.params + static_cast<int64_t>(first) * groups * 4;
    if (groups == 2) {
      const __m512i a = _mm512_maskz_loadu_epi32(FirstLanes(2 * count), at);
      const __m512i b = _mm512_maskz_loadu_epi32(FirstLanes(2 * count - kLanes), at + 64);
      const __m512i every_second =
          _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
      return _mm512_permutex2var_epi32(a, _mm512_add_epi32(every_second, _mm512_set1_epi32(c)), b);
    }
    const __m512i index =
        _mm512_mullo_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                           _mm512_set1_epi32(groups));
    return _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), FirstLanes(count), index, at + 4 * c,
                                       4);
  }
  static RIPPLEKV_INLINE __m512 Scales(__m512i params) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(params, 16));
  }
  static RIPPLEKV_INLINE __m512 Minima(__m512i params) {
    return _mm512_castsi512_ps(
        _mm512_and_si512(params, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }

  /// `vectors` of 16 rows, all of them there if `whole`.
  template <int queries, int vectors, bool whole>
  static RIPPLEKV_INLINE void ScoreRows(const Block& keys, int head_dim, const float* q,
                                        float (*scores)[kBlockRows]) {
    const int padded = Padded(head_dim);
    const int groups = padded / kChunk;
    const __m512i nibble = _mm512_set1_epi8(15);
    __m512 score[vectors][queries];
    Unroll<vectors * queries>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
      score[i.value / queries][i.value % queries] = _mm512_setzero_ps();
    });
    for (int c = 0; c < groups; ++c) {
      __m512i x[vectors][4], high[vectors][queries], low[vectors][queries];
      Unroll<vectors>([&](auto v) RIPPLEKV_INLINE_LAMBDA {
        LoadDwords(
            [&](int r) RIPPLEKV_INLINE_LAMBDA {
              return keys.data + RowOf<whole>(keys, v.value * kLanes + r) * (padded / 2) +
                     c * (kChunk / 2);
            },
            x[v.value]);
      });
      Unroll<vectors * queries>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
        high[i.value / queries][i.value % queries] = _mm512_setzero_si512();
        low[i.value / queries][i.value % queries] = _mm512_setzero_si512();
      });
      Unroll<4>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
        Unroll<2>([&](auto half) RIPPLEKV_INLINE_LAMBDA {
          __m512i key[vectors];
          Unroll<vectors>([&](auto v) RIPPLEKV_INLINE_LAMBDA {
            const __m512i both = x[v.value][i.value];
            key[v.value] =
                _mm512_and_si512(half.value == 0 ? both : _mm512_srli_epi16(both, 4), nibble);
          });
          DotWithQueries<queries, vectors>(key, q, head_dim,
                                           c * kChunk + half.value * 16 + 4 * i.value, high, low);
        });
      });
      Unroll<vectors>([&](auto v) RIPPLEKV_INLINE_LAMBDA {
        const __m512i params = LoadParams(keys, groups, c, v.value * kLanes);
        Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
          const IntegerQuery query(q + g.value * padded, head_dim);
          const __m512 sum = _mm512_set1_ps(static_cast<float>(LoadAs<int32_t>(query.sum(c))));
          __m512& s = score[v.value][g.value];
          s = _mm512_fmadd_ps(Scales(params), Whole(high[v.value][g.value], low[v.value][g.value]),
                              s);
          s = _mm512_fmadd_ps(Minima(params), sum, s);
        });
      });
    }
    Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
      const IntegerQuery query(q + g.value * padded, head_dim);
      const __m512 unit = _mm512_set1_ps(LoadAs<float>(query.unit()));
      Unroll<vectors>([&](auto v) RIPPLEKV_INLINE_LAMBDA {
        _mm512_storeu_ps(scores[g.value] + v.value * kLanes,
                         _mm512_mul_ps(score[v.value][g.value], unit));
      });
    });
  }
};

}  // namespace ripplekv::RIPPLEKV_ISA
