// Blocks of int8 rows by AVX512-VNNI.
#pragma once

#include "kernels/decode_attention_integers.h"

namespace ripplekv::RIPPLEKV_ISA {

template <>
struct DotRows<KvType::kInt8> {
  static constexpr bool kWholeBlocks = false;
  static int QueryFloats(int head_dim) { return Padded(head_dim); }

  static void PrepareQuery(const float* q, int head_dim, float scale, float* out) {
    PrepareIntegerQuery(q, head_dim, scale, out);
  }

  template <int queries>
  static void Score(const Block& keys, int head_dim, const float* q, float (*scores)[kBlockRows],
                    Ahead& ahead) {
    ahead.Next(kBlockRows / 2);
    if (keys.count == kBlockRows) {
      ScoreRows<queries, 2, true>(keys, head_dim, q, scores, ahead);
    } else if (keys.count > kLanes) {
      ScoreRows<queries, 2, false>(keys, head_dim, q, scores, ahead);
    } else {
      ScoreRows<queries, 1, false>(keys, head_dim, q, scores, ahead);
    }
  }

  static constexpr int kTile = 64;  // channels
  static int SumFloats(int head_dim) { return (head_dim + kTile - 1) / kTile * kTile; }

  template <int queries>
  static void Weigh(const Block& values, int head_dim, const float (*p)[kBlockRows], float* sums,
                    Ahead& ahead) {
    ahead.Next(kBlockRows / 2);
    IntegerWeights<queries> weights;
    const float* scales = reinterpret_cast<const float*>(values.params);
    const __m512 scale_a = _mm512_maskz_loadu_ps(FirstLanes(values.count), scales);
    const __m512 scale_b =
        _mm512_maskz_loadu_ps(FirstLanes(values.count - kLanes), scales + kLanes);
    Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
      weights.Set(g.value, _mm512_mul_ps(Load(p[g.value]).v, scale_a),
                  _mm512_mul_ps(Load(p[g.value] + kLanes).v, scale_b));
    });
    const int64_t stride = SumFloats(head_dim);
    for (int c = 0; c < head_dim; c += kTile, sums += kTile) {
      const int left = Padded(head_dim) - c;
      const __mmask64 whole = left >= kTile ? ~uint64_t{0} : 0xffffffffu;
      __m512i sum[queries][4][2];
      Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
        Unroll<4>([&](auto v) RIPPLEKV_INLINE_LAMBDA {
          sum[g.value][v.value][0] = _mm512_setzero_si512();
          sum[g.value][v.value][1] = _mm512_setzero_si512();
        });
      });
      const uint8_t* weight = weights.high[0];
      const auto add = [&](const std::byte* r0, const std::byte* r1, const std::byte* r2,
                           const std::byte* r3) RIPPLEKV_INLINE_LAMBDA {
        const __m512i a = _mm512_maskz_loadu_epi8(whole, r0);
        const __m512i b = _mm512_maskz_loadu_epi8(whole, r1);
        const __m512i d = _mm512_maskz_loadu_epi8(whole, r2);
        const __m512i e = _mm512_maskz_loadu_epi8(whole, r3);
        const __m512i ab = _mm512_unpacklo_epi8(a, b), ab2 = _mm512_unpackhi_epi8(a, b);
        const __m512i de = _mm512_unpacklo_epi8(d, e), de2 = _mm512_unpackhi_epi8(d, e);
        const __m512i x[4] = {_mm512_unpacklo_epi16(ab, de), _mm512_unpackhi_epi16(ab, de),
                              _mm512_unpacklo_epi16(ab2, de2), _mm512_unpackhi_epi16(ab2, de2)};
        Unroll<2 * queries>([&](auto i) RIPPLEKV_INLINE_LAMBDA {  // high bytes, then low ones
          const __m512i w = BroadcastDword(weight + i.value * kBlockRows);
          Unroll<4>([&](auto v) RIPPLEKV_INLINE_LAMBDA {
            DotBytes(sum[i.value % queries][v.value][i.value / queries], w, x[v.value]);
          });
        });
        weight += 4;
      };
      const int64_t step = Padded(head_dim);
      const std::byte* row = values.data + c;
      const std::byte* const last = row + (values.count - 1) * step;
      const uint8_t* const end = weight + values.count / 4 * 4;
      const uint8_t* const middle = weight + kBlockRows / 2;
      while (weight != end) {
        add(row, row + step, row + 2 * step, row + 3 * step);
        row += 4 * step;
        if (weight == middle) ahead.Next(kBlockRows / 2);
      }
      if (row <= last) {  // those beyond it weigh nothing
        add(row, row + step < last ? row + step : last,
            row + 2 * step < last ? row + 2 * step : last, last);
      }
      Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
        Unroll<4>([&](auto v) RIPPLEKV_INLINE_LAMBDA {
          float* to = sums + g.value * stride + v.value * kLanes;
          _mm512_storeu_ps(
              to, _mm512_fmadd_ps(Whole(sum[g.value][v.value][0], sum[g.value][v.value][1]),
                                  _mm512_set1_ps(weights.unit[g.value]), _mm512_loadu_ps(to)));
        });
      });
    }
  }

  static void Finish(const float* sums, int head_dim, float* out) {
    // Bytes were interleaved within lanes of 16.
    Reorder(
        sums, head_dim,
        [](int c) RIPPLEKV_INLINE_LAMBDA {
          return c / kTile * kTile + c % 16 / 4 * kLanes + c % kTile / 16 * 4 + c % 4;
        },
        out);
  }

 private:
  /// `vectors` of 16 rows, all of them there if `whole`.
  template <int queries, int vectors, bool whole>
  static RIPPLEKV_INLINE void ScoreRows(const Block& keys, int head_dim, const float* q,
                                        float (*scores)[kBlockRows], Ahead& ahead) {
    const int padded = Padded(head_dim);
    const __m512i offset = _mm512_set1_epi8(-128);
    __m512i high[vectors][queries], low[vectors][queries];
    Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
      const IntegerQuery query(q + g.value * padded, head_dim);
      uint32_t sum = 0;
      for (int c = 0; c < padded / kChunk; ++c) sum += LoadAs<uint32_t>(query.sum(c));
      Unroll<vectors>([&](auto v) RIPPLEKV_INLINE_LAMBDA {
        high[v.value][g.value] = _mm512_setzero_si512();
        low[v.value][g.value] = _mm512_set1_epi32(static_cast<int32_t>(0u - 128u * sum));
      });
    });
    for (int c = 0; c < padded; c += 16) {
      if (c == padded / 2) ahead.Next(kBlockRows / 2);
      __m512i x[vectors][4];
      Unroll<vectors>([&](auto v) RIPPLEKV_INLINE_LAMBDA {
        LoadDwords(
            [&](int r) RIPPLEKV_INLINE_LAMBDA {
              return keys.data + RowOf<whole>(keys, v.value * kLanes + r) * padded + c;
            },
            x[v.value]);
      });
      Unroll<4>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
        __m512i key[vectors];
        Unroll<vectors>([&](auto v) RIPPLEKV_INLINE_LAMBDA {
          key[v.value] = _mm512_xor_si512(x[v.value][i.value], offset);
        });
        DotWithQueries<queries, vectors>(key, q, head_dim, c + 4 * i.value, high, low);
      });
    }
    Unroll<vectors>([&](auto v) RIPPLEKV_INLINE_LAMBDA {
      const __m512 scales =
          _mm512_maskz_loadu_ps(FirstLanes(keys.count - v.value * kLanes),
                                reinterpret_cast<const float*>(keys.params) + v.value * kLanes);
      Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
        const IntegerQuery query(q + g.value * padded, head_dim);
        const __m512 unit = _mm512_set1_ps(LoadAs<float>(query.unit()));
        _mm512_storeu_ps(scores[g.value] + v.value * kLanes,
                         _mm512_mul_ps(Whole(high[v.value][g.value], low[v.value][g.value]),
                                       _mm512_mul_ps(unit, scales)));
      });
    });
  }
};

}  // namespace ripplekv::RIPPLEKV_ISA
