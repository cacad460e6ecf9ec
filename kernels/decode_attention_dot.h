// What the builds with AVX512-BF16 and AVX512-VNNI share: blocks of rows by dot products of bf16
// and of bytes. Per instruction set, like simd.h.
#pragma once

#include "kernels/decode_attention_float.h"

namespace ripplekv::RIPPLEKV_ISA {

inline constexpr float kLeastScale = 0x1p-100f;  // smaller weights and queries count as none

/// The first n lanes.
RIPPLEKV_INLINE __mmask16 FirstLanes(int n) {
  return static_cast<__mmask16>(n >= kLanes ? 0xffff : (1u << (n > 0 ? n : 0)) - 1);
}

/// out[c] = sums[where(c)]; channels that follow a multiple of 4 lie together.
template <typename Where>
RIPPLEKV_INLINE void Reorder(const float* sums, int head_dim, const Where& where, float* out) {
  int c = 0;
  for (; c + 4 <= head_dim; c += 4) _mm_storeu_ps(out + c, _mm_loadu_ps(sums + where(c)));
  for (; c < head_dim; ++c) out[c] = sums[where(c)];
}

template <KvType type>
struct DotRows;

/// x becomes e^x to 3e-7 and |x| / 2^24; 0 below -86.6, NaN stays. For x up to 88. Step by step for
/// all: each waits for the step before, and the processor looks only so far ahead.
template <int n>
RIPPLEKV_INLINE void ExpOfScores(Vec (&x)[n]) {
  const __m512 magic = _mm512_set1_ps(12582912.0f);
  __m512 f[n], p[n];
  __mmask16 some[n];
  Unroll<n>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
    f[i.value] = _mm512_mul_ps(x[i.value].v, _mm512_set1_ps(1.44269504088896341f));
  });
  Unroll<n>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
    const __m512 t = _mm512_add_ps(f[i.value], magic);
    some[i.value] = _mm512_cmp_ps_mask(f[i.value], _mm512_set1_ps(-125.0f), _CMP_NLT_UQ);
    f[i.value] = _mm512_sub_ps(f[i.value], _mm512_sub_ps(t, magic));
    x[i.value] = PowerOfTwo({t});
  });
  // 2^f for |f| <= 1/2.
  Unroll<n>([&](auto i) RIPPLEKV_INLINE_LAMBDA { p[i.value] = _mm512_set1_ps(0.001327647129f); });
  const auto step = [&](float c) RIPPLEKV_INLINE_LAMBDA {
    Unroll<n>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
      p[i.value] = _mm512_fmadd_ps(p[i.value], f[i.value], _mm512_set1_ps(c));
    });
  };
  step(0.009675541893f);
  step(0.05550713092f);
  step(0.2402212024f);
  step(0.693146944f);
  step(1.0000001192f);
  Unroll<n>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
    x[i.value] = {_mm512_maskz_mul_ps(some[i.value], p[i.value], x[i.value].v)};
  });
}

RIPPLEKV_INLINE __m512i BroadcastDword(const void* p) {
  return _mm512_set1_epi32(LoadAs<int32_t>(p));
}

}  // namespace ripplekv::RIPPLEKV_ISA
