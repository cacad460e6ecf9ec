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

RIPPLEKV_INLINE __m512i BroadcastDword(const void* p) {
  return _mm512_set1_epi32(LoadAs<int32_t>(p));
}

}  // namespace ripplekv::RIPPLEKV_ISA
