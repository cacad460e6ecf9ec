// Scores and weighted values of a block of rows of any stored type, in fp32. Per instruction set,
// like simd.h.
#pragma once

#include "kernels/decode_attention_block.h"
#include "kernels/kv_chunk.h"

namespace ripplekv::RIPPLEKV_ISA {

#if defined(__AVX512F__)
inline constexpr int kMaxQueries = 3;   // of a group at a time
inline constexpr int kRowTile = 4;      // keys at a time
inline constexpr int kValueChunks = 2;  // chunks of a value row at a time
#elif defined(__AVX2__)
inline constexpr int kMaxQueries = 3;
inline constexpr int kRowTile = 2;
inline constexpr int kValueChunks = 1;
#else
inline constexpr int kMaxQueries = 1;
inline constexpr int kRowTile = 1;
inline constexpr int kValueChunks = 1;
#endif

/// Head dimension rounded up to whole chunks.
RIPPLEKV_INLINE constexpr int Padded(int head_dim) {
  return (head_dim + kChunk - 1) / kChunk * kChunk;
}

template <KvType type>
struct FloatRows {
  static constexpr bool kWholeBlocks = false;  // blocks may be of fewer rows than kBlockRows
  /// Of a query prepared.
  static int QueryFloats(int head_dim) { return Padded(head_dim); }

  /// out [Padded(head_dim)] = the query times `scale` in the keys' order of lanes, zeros behind the
  /// head's channels.
  static void PrepareQuery(const float* q, int head_dim, float scale, float* out) {
    for (int c = 0; c < Padded(head_dim); c += kChunk) {
      for (int half = 0; half < 2; ++half) {
        for (int lane = 0; lane < kLanes; ++lane) {
          const int channel = c + ChunkChannel(type, half, lane);
          *out++ = channel < head_dim ? q[channel] * scale : 0;
        }
      }
    }
  }

  /// scores[g][r] = query g . key r.
  template <int queries>
  static void Score(const Block& keys, int head_dim, const float* q, float (*scores)[kBlockRows],
                    Ahead& ahead) {
    if (head_dim == 2 * kChunk) {
      ScoreChunks<queries, 2>(keys, head_dim, q, scores, ahead);
    } else {
      ScoreChunks<queries, 0>(keys, head_dim, q, scores, ahead);
    }
    if constexpr (kRowScale<type>) {
      const float* scales = reinterpret_cast<const float*>(keys.params);
      for (int g = 0; g < queries; ++g) {
        for (int r = 0; r < keys.count; ++r) scores[g][r] *= scales[r];
      }
    }
  }

  static int SumFloats(int head_dim) { return Padded(head_dim); }

  /// sums[g] [SumFloats] += the value rows weighted by p[g].
  template <int queries>
  static void Weigh(const Block& values, int head_dim, const float (*p)[kBlockRows], float* sums,
                    Ahead& ahead) {
    const float (*weights)[kBlockRows] = p;
    alignas(64) float scaled[queries][kBlockRows];
    if constexpr (kRowScale<type>) {
      const float* scales = reinterpret_cast<const float*>(values.params);
      for (int g = 0; g < queries; ++g) {
        for (int r = 0; r < values.count; ++r) scaled[g][r] = p[g][r] * scales[r];
      }
      weights = scaled;
    }
    int c = 0;
    for (; c + kValueChunks * kChunk <= head_dim; c += kValueChunks * kChunk) {
      WeighChunks<queries, kValueChunks>(values, head_dim, c, weights, sums, ahead);
    }
    for (; c < head_dim; c += kChunk) {
      WeighChunks<queries, 1>(values, head_dim, c, weights, sums, ahead);
    }
  }

  static void Finish(const float* sums, int head_dim, float* out) {
    for (int c = 0; c < head_dim; c += kChunk) {
      for (int half = 0; half < 2; ++half) {
        for (int lane = 0; lane < kLanes; ++lane) {
          const int channel = c + ChunkChannel(type, half, lane);
          if (channel < head_dim) out[channel] = sums[c + half * kLanes + lane];
        }
      }
    }
  }

 private:
  /// Chunk c / kChunk of row r, its channels behind head_dim zeros.
  static RIPPLEKV_INLINE Chunk LoadRow(const Block& rows, int head_dim, int r, int c, bool whole) {
    const int64_t groups = Padded(head_dim) / kChunk;
    const int64_t row_bytes = static_cast<int64_t>(KvRowBytesOf(head_dim));
    const std::byte* data = rows.data + r * row_bytes + c / kChunk * kChunkBytes<type>;
    const std::byte* params =
        rows.params + (r * groups + c / kChunk) * static_cast<int64_t>(kChunkParamBytes<type>);
    return whole ? LoadChunk<type>(data, params) : LoadChunkUpTo<type>(data, params, head_dim - c);
  }
  static RIPPLEKV_INLINE constexpr int KvRowBytesOf(int head_dim) {
    return type == KvType::kF32    ? head_dim * 4
           : type == KvType::kBf16 ? head_dim * 2
                                   : Padded(head_dim) / kChunk * kChunkBytes<type>;
  }

  /// `chunks`: whole ones of a row, all that there are; 0: any.
  template <int queries, int chunks>
  static RIPPLEKV_INLINE void ScoreChunks(const Block& keys, int head_dim, const float* q,
                                          float (*scores)[kBlockRows], Ahead& ahead) {
    int r = 0;
    for (; r + kRowTile <= keys.count; r += kRowTile) {
      ahead.Next(kRowTile);
      Dot<queries, kRowTile, chunks>(keys, head_dim, q, r, scores);
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
    const auto add = [&](int c, bool whole) RIPPLEKV_INLINE_LAMBDA {
      Unroll<rows>([&](auto r) RIPPLEKV_INLINE_LAMBDA {
        const Chunk key = LoadRow(keys, d, row + r.value, c, whole);
        Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
          const float* at = q + g.value * Padded(d) + c;
          Vec& s = sum[r.value][g.value];
          s = Fma(Load(at), key.a, s);
          s = Fma(Load(at + kLanes), key.b, s);
        });
      });
    };
    if constexpr (chunks > 0) {
      Unroll<chunks>([&](auto c) RIPPLEKV_INLINE_LAMBDA { add(c.value * kChunk, true); });
    } else {
      int c = 0;
      for (; c + kChunk <= d; c += kChunk) add(c, true);
      if (c < d) add(c, false);
    }
    Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
      float* out = scores[g.value] + row;
      if constexpr (rows == 4) {
        StoreSums(out, sum[0][g.value], sum[1][g.value], sum[2][g.value], sum[3][g.value]);
      } else {
        Unroll<rows>([&](auto r)
                         RIPPLEKV_INLINE_LAMBDA { out[r.value] = Sum(sum[r.value][g.value]); });
      }
    });
  }

  /// Channels [channel, channel + chunks * kChunk); a single chunk may be part of one.
  template <int queries, int chunks>
  static RIPPLEKV_INLINE void WeighChunks(const Block& values, int head_dim, int channel,
                                          const float (*p)[kBlockRows], float* sums, Ahead& ahead) {
    const int64_t stride = Padded(head_dim);
    Vec sum[queries][chunks][2];
    Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
      Unroll<chunks>([&](auto c) RIPPLEKV_INLINE_LAMBDA {
        const float* from = sums + g.value * stride + channel + c.value * kChunk;
        sum[g.value][c.value][0] = Load(from);
        sum[g.value][c.value][1] = Load(from + kLanes);
      });
    });
    for (int r = 0; r < values.count; ++r) {
      if (channel == 0) ahead.Next(1);
      Chunk value[chunks];
      Unroll<chunks>([&](auto c) RIPPLEKV_INLINE_LAMBDA {
        value[c.value] = LoadRow(values, head_dim, r, channel + c.value * kChunk, chunks > 1);
      });
      Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
        const Vec weight = Set(p[g.value][r]);
        Unroll<chunks>([&](auto c) RIPPLEKV_INLINE_LAMBDA {
          Vec(&s)[2] = sum[g.value][c.value];
          s[0] = Fma(weight, value[c.value].a, s[0]);
          s[1] = Fma(weight, value[c.value].b, s[1]);
        });
      });
    }
    Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
      Unroll<chunks>([&](auto c) RIPPLEKV_INLINE_LAMBDA {
        float* to = sums + g.value * stride + channel + c.value * kChunk;
        Store(to, sum[g.value][c.value][0]);
        Store(to + kLanes, sum[g.value][c.value][1]);
      });
    });
  }
};

}  // namespace ripplekv::RIPPLEKV_ISA
