// Queries and weights as integers of 16 bits, a high and a low byte each, for AVX512-VNNI. Queries
// are in units of their largest magnitude / 32512, a block's weights in units of their largest /
// 65535. Integers sum up exactly, in any order.
#pragma once

#include "kernels/decode_attention_dot.h"

namespace ripplekv::RIPPLEKV_ISA {

inline constexpr float kLargest = 3.4028234663852886e38f;

/// sum += the products of unsigned and signed bytes, four a lane. The intrinsic spills its
/// accumulators.
RIPPLEKV_INLINE void DotBytes(__m512i& sum, __m512i unsigned_bytes, __m512i signed_bytes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(unsigned_bytes), "v"(signed_bytes));
}

/// 16 bytes of each of four rows.
RIPPLEKV_INLINE __m512i Quarters(const std::byte* a, const std::byte* b, const std::byte* c,
                                 const std::byte* d) {
  const auto load = [](const std::byte* p) RIPPLEKV_INLINE_LAMBDA {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  };
  __m512i x = _mm512_castsi128_si512(load(a));
  x = _mm512_inserti32x4(x, load(b), 1);
  x = _mm512_inserti32x4(x, load(c), 2);
  return _mm512_inserti32x4(x, load(d), 3);
}

/// x[i] = bytes 4 i ... 4 i + 3 of the 16 at at(row), of each of 16 rows.
template <typename At>
RIPPLEKV_INLINE void LoadDwords(const At& at, __m512i (&x)[4]) {
  __m512i v[4], w[4];
  Unroll<4>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
    v[i.value] = Quarters(at(i.value), at(i.value + 4), at(i.value + 8), at(i.value + 12));
  });
  w[0] = _mm512_unpacklo_epi32(v[0], v[1]);
  w[1] = _mm512_unpackhi_epi32(v[0], v[1]);
  w[2] = _mm512_unpacklo_epi32(v[2], v[3]);
  w[3] = _mm512_unpackhi_epi32(v[2], v[3]);
  x[0] = _mm512_unpacklo_epi64(w[0], w[2]);
  x[1] = _mm512_unpackhi_epi64(w[0], w[2]);
  x[2] = _mm512_unpacklo_epi64(w[1], w[3]);
  x[3] = _mm512_unpackhi_epi64(w[1], w[3]);
}

/// A query as integers.
struct IntegerQuery {
  std::byte* at;
  int padded;

  RIPPLEKV_INLINE IntegerQuery(const float* q, int head_dim)
      : at(reinterpret_cast<std::byte*>(const_cast<float*>(q))), padded(Padded(head_dim)) {}
  RIPPLEKV_INLINE int8_t* high(int channel) const {
    return reinterpret_cast<int8_t*>(at) + channel;
  }
  RIPPLEKV_INLINE int8_t* low(int channel) const {
    return reinterpret_cast<int8_t*>(at) + padded + channel;
  }
  RIPPLEKV_INLINE std::byte* unit() const { return at + 2 * padded; }
  /// Of a chunk's integers.
  RIPPLEKV_INLINE std::byte* sum(int chunk) const { return at + 2 * padded + 4 + 4 * chunk; }
};

/// A query in steps of its largest magnitude / 32512.
struct QueryScale {
  const float* q;
  int head_dim;
  float unit;      // of the integers, times what scores are scaled by; NaN if not all are finite
  __m512 inverse;  // 0 where the integers are

  RIPPLEKV_INLINE __m512 Load(int channel) const {
    return _mm512_maskz_loadu_ps(FirstLanes(head_dim - channel), q + channel);
  }
  /// Of 16 channels, zeros behind the last.
  RIPPLEKV_INLINE __m512i Integers(int channel) const {
    return unit > 0 || unit < 0 ? _mm512_cvtps_epi32(_mm512_mul_ps(Load(channel), inverse))
                                : _mm512_setzero_si512();
  }
};

RIPPLEKV_INLINE QueryScale QueryScaleOf(const float* q, int head_dim, float scale) {
  QueryScale by{q, head_dim, 0, _mm512_setzero_ps()};
  __m512i most = _mm512_setzero_si512();  // magnitudes order as their bits do
  for (int c = 0; c < head_dim; c += kLanes) {
    most = _mm512_max_epi32(most, _mm512_castps_si512(_mm512_abs_ps(by.Load(c))));
  }
  const int32_t bits = _mm512_reduce_max_epi32(most);
  const float largest = LoadAs<float>(&bits);
  if (bits >= 0x7f800000) {
    by.unit = __builtin_nanf("");
  } else if (largest >= kLeastScale) {
    by.unit = largest / 32512.0f * scale;
    by.inverse = _mm512_set1_ps(32512.0f / largest);
  }
  return by;
}

inline void PrepareIntegerQuery(const float* q, int head_dim, float scale, float* out) {
  const IntegerQuery to(out, head_dim);
  const QueryScale by = QueryScaleOf(q, head_dim, scale);
  __builtin_memcpy(to.unit(), &by.unit, sizeof by.unit);
  for (int c = 0; c < to.padded; c += kChunk) {
    __m512i sum = _mm512_setzero_si512();
    for (int i = c; i < c + kChunk; i += kLanes) {
      const __m512i x = by.Integers(i);
      const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(x, _mm512_set1_epi32(128)), 8);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to.high(i)), _mm512_cvtepi32_epi8(high));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to.low(i)), _mm512_cvtepi32_epi8(x));
      sum = _mm512_add_epi32(sum, x);
    }
    const int32_t total = _mm512_reduce_add_epi32(sum);
    __builtin_memcpy(to.sum(c / kChunk), &total, sizeof total);
  }
}

/// The block's row r, or its last one.
template <bool whole>
RIPPLEKV_INLINE int64_t RowOf(const Block& rows, int r) {
  return whole || r < rows.count ? r : rows.count - 1;
}

/// high, low += four channels of keys, from `channel` on, times the queries'.
template <int queries, int vectors>
RIPPLEKV_INLINE void DotWithQueries(const __m512i (&key)[vectors], const float* q, int head_dim,
                                    int channel, __m512i (&high)[vectors][queries],
                                    __m512i (&low)[vectors][queries]) {
  Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
    const IntegerQuery query(q + g.value * Padded(head_dim), head_dim);
    const __m512i h = BroadcastDword(query.high(channel));
    const __m512i l = BroadcastDword(query.low(channel));
    Unroll<vectors>([&](auto v) RIPPLEKV_INLINE_LAMBDA {
      DotBytes(high[v.value][g.value], key[v.value], h);
      DotBytes(low[v.value][g.value], key[v.value], l);
    });
  });
}

/// A block's weights of some queries.
template <int queries>
struct IntegerWeights {
  alignas(64) uint8_t high[queries][kBlockRows];
  uint8_t low[queries][kBlockRows];  // right behind
  float unit[queries];               // NaN if a weight is not finite

  RIPPLEKV_INLINE void Set(int g, __m512 a, __m512 b) {
    const float largest = MaxLane({_mm512_max_ps(a, b)});
    const __m512 most = _mm512_set1_ps(kLargest);
    const unsigned bad =
        _mm512_cmp_ps_mask(a, most, _CMP_NLE_UQ) | _mm512_cmp_ps_mask(b, most, _CMP_NLE_UQ);
    const bool usable = largest >= kLeastScale;
    const __m512 inverse = _mm512_set1_ps(usable ? 65535.0f / largest : 0.0f);
    const auto put = [&](__m512 x, int row) RIPPLEKV_INLINE_LAMBDA {
      const __m512i w = _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse));
      _mm_store_si128(reinterpret_cast<__m128i*>(low[g] + row), _mm512_cvtepi32_epi8(w));
      _mm_store_si128(reinterpret_cast<__m128i*>(high[g] + row),
                      _mm512_cvtepi32_epi8(_mm512_srli_epi32(w, 8)));
    };
    put(a, 0);
    put(b, kLanes);
    unit[g] = bad != 0 ? __builtin_nanf("") : usable ? largest / 65535.0f : 0.0f;
  }
};

/// The lanes' high * 256 + low.
RIPPLEKV_INLINE __m512 Whole(__m512i high, __m512i low) {
  return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high, 8), low));
}

}  // namespace ripplekv::RIPPLEKV_ISA
