// Blocks of bf16 rows by AVX512-BF16. A query is two bf16 numbers whose sum it is, to 2^-15;
// weights of values are rounded to bf16. Denormal numbers count as zeros.
#pragma once

#include "kernels/decode_attention_dot.h"

namespace ripplekv::RIPPLEKV_ISA {

template <>
struct DotRows<KvType::kBf16> {
  static constexpr bool kWholeBlocks = false;
  static int QueryFloats(int head_dim) { return Padded(head_dim); }

  /// For each chunk the high parts [32], then the low parts.
  static void PrepareQuery(const float* q, int head_dim, float scale, float* out) {
    uint16_t* parts = reinterpret_cast<uint16_t*>(out);
    for (int c = 0; c < Padded(head_dim); c += kChunk, parts += 2 * kChunk) {
      for (int i = 0; i < kChunk; ++i) {
        const float x = c + i < head_dim ? q[c + i] * scale : 0;
        const uint32_t bits = LoadAs<uint32_t>(&x) & 0xffff0000u;
        const float high = LoadAs<float>(&bits);
        // Of the high part's sign and not zero, so that an infinite key stays infinite.
        const float rest = x - high;
        const float least = high > 0 ? kLeastScale : high < 0 ? -kLeastScale : 0;
        const float low = rest != 0 ? rest : least;
        parts[i] = static_cast<uint16_t>(bits >> 16);
        parts[kChunk + i] = static_cast<uint16_t>(LoadAs<uint32_t>(&low) >> 16);
      }
    }
  }

  template <int queries>
  static void Score(const Block& keys, int head_dim, const float* q, float (*scores)[kBlockRows],
                    Ahead& ahead) {
    if (head_dim == 2 * kChunk) {
      ScoreChunks<queries, 2>(keys, head_dim, q, scores, ahead);
    } else {
      ScoreChunks<queries, 0>(keys, head_dim, q, scores, ahead);
    }
  }

  static int SumFloats(int head_dim) { return Padded(head_dim); }

  template <int queries>
  static void Weigh(const Block& values, int head_dim, const float (*p)[kBlockRows], float* sums,
                    Ahead& ahead) {
    alignas(64) uint16_t weights[queries][kBlockRows];  // pairs of rows
    Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
      _mm512_store_si512(weights[g.value], (__m512i)_mm512_cvtne2ps_pbh(Load(p[g.value] + kLanes).v,
                                                                        Load(p[g.value]).v));
    });
    int c = 0;
    for (; c + 2 * kChunk <= head_dim; c += 2 * kChunk) {
      WeighChunks<queries, 2>(values, head_dim, c, weights, sums, ahead);
    }
    for (; c < head_dim; c += kChunk) {
      WeighChunks<queries, 1>(values, head_dim, c, weights, sums, ahead);
    }
  }

  static void Finish(const float* sums, int head_dim, float* out) {
    // Pairs were interleaved within lanes of 8.
    Reorder(
        sums, head_dim,
        [](int c) RIPPLEKV_INLINE_LAMBDA {
          return c / kChunk * kChunk + c % 8 / 4 * kLanes + c % kChunk / 8 * 4 + c % 4;
        },
        out);
  }

 private:
  static RIPPLEKV_INLINE __m512i LoadRow(const Block& rows, int head_dim, int r, int c) {
    const std::byte* p = rows.data + (static_cast<int64_t>(r) * head_dim + c) * 2;
    const int left = head_dim - c;
    if (left >= kChunk) return _mm512_loadu_si512(p);
    return _mm512_maskz_loadu_epi16((1u << left) - 1, p);
  }

  template <int queries, int chunks>
  static RIPPLEKV_INLINE void ScoreChunks(const Block& keys, int head_dim, const float* q,
                                          float (*scores)[kBlockRows], Ahead& ahead) {
    int r = 0;
    for (; r + 4 <= keys.count; r += 4) {
      ahead.Next(4);
      Dot<queries, 4, chunks>(keys, head_dim, q, r, scores);
    }
    for (; r < keys.count; ++r) Dot<queries, 1, chunks>(keys, head_dim, q, r, scores);
  }

  template <int queries, int rows, int chunks>
  static RIPPLEKV_INLINE void Dot(const Block& keys, int head_dim, const float* q, int row,
                                  float (*scores)[kBlockRows]) {
    const int d = chunks > 0 ? chunks * kChunk : head_dim;
    Vec sum[rows][queries];
    Unroll<rows>([&](auto r) RIPPLEKV_INLINE_LAMBDA {
      Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA { sum[r.value][g.value] = Zero(); });
    });
    const auto add = [&](int c) RIPPLEKV_INLINE_LAMBDA {
      __m512bh key[rows];
      Unroll<rows>([&](auto r) RIPPLEKV_INLINE_LAMBDA {
        key[r.value] = (__m512bh)LoadRow(keys, d, row + r.value, c);
      });
      Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
        Unroll<2>([&](auto part) RIPPLEKV_INLINE_LAMBDA {
          const __m512bh x =
              (__m512bh)_mm512_load_si512(q + g.value * Padded(d) + c + part.value * kChunk / 2);
          Unroll<rows>([&](auto r) RIPPLEKV_INLINE_LAMBDA {
            __m512& s = sum[r.value][g.value].v;
            s = _mm512_dpbf16_ps(s, key[r.value], x);
          });
        });
      });
    };
    if constexpr (chunks > 0) {
      Unroll<chunks>([&](auto c) RIPPLEKV_INLINE_LAMBDA { add(c.value * kChunk); });
    } else {
      for (int c = 0; c < d; c += kChunk) add(c);
    }
    Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
      float* out = scores[g.value] + row;
      if constexpr (rows == 4) {
        StoreSums(out, sum[0][g.value], sum[1][g.value], sum[2][g.value], sum[3][g.value]);
      } else {
        out[0] = Sum(sum[0][g.value]);
      }
    });
  }

  template <int queries, int chunks>
  static RIPPLEKV_INLINE void WeighChunks(const Block& values, int head_dim, int channel,
                                          const uint16_t (*weights)[kBlockRows], float* sums,
                                          Ahead& ahead) {
    const int64_t stride = Padded(head_dim);
    __m512 sum[queries][chunks][2];
    Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
      Unroll<chunks>([&](auto c) RIPPLEKV_INLINE_LAMBDA {
        const float* from = sums + g.value * stride + channel + c.value * kChunk;
        sum[g.value][c.value][0] = _mm512_loadu_ps(from);
        sum[g.value][c.value][1] = _mm512_loadu_ps(from + kLanes);
      });
    });
    for (int r = 0; r < values.count; r += 2) {
      if (channel == 0) ahead.Next(2);
      const int odd = r + 1 < values.count ? r + 1 : r;  // weighs nothing
      __m512bh pair[chunks][2];
      Unroll<chunks>([&](auto c) RIPPLEKV_INLINE_LAMBDA {
        const __m512i a = LoadRow(values, head_dim, r, channel + c.value * kChunk);
        const __m512i b = LoadRow(values, head_dim, odd, channel + c.value * kChunk);
        pair[c.value][0] = (__m512bh)_mm512_unpacklo_epi16(a, b);
        pair[c.value][1] = (__m512bh)_mm512_unpackhi_epi16(a, b);
      });
      Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
        const __m512bh weight = (__m512bh)BroadcastDword(weights[g.value] + r);
        Unroll<chunks>([&](auto c) RIPPLEKV_INLINE_LAMBDA {
          __m512(&s)[2] = sum[g.value][c.value];
          s[0] = _mm512_dpbf16_ps(s[0], pair[c.value][0], weight);
          s[1] = _mm512_dpbf16_ps(s[1], pair[c.value][1], weight);
        });
      });
    }
    Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
      Unroll<chunks>([&](auto c) RIPPLEKV_INLINE_LAMBDA {
        float* to = sums + g.value * stride + channel + c.value * kChunk;
        _mm512_storeu_ps(to, sum[g.value][c.value][0]);
        _mm512_storeu_ps(to + kLanes, sum[g.value][c.value][1]);
      });
    });
  }
};

}  // namespace ripplekv::RIPPLEKV_ISA
