// Loading cached keys, values and queries of either type. Per instruction set, like simd.h.
#pragma once

#include "kernels/kv_type.h"
#include "kernels/simd.h"

namespace ripplekv::RIPPLEKV_ISA {

RIPPLEKV_INLINE Vec LoadKv(const float* p) { return Load(p); }
RIPPLEKV_INLINE Vec LoadKv(const uint16_t* p) { return LoadBf16(p); }

/// The first n lanes (1 to 16) of a row, zeros after them; reads nothing beyond.
template <typename T>
RIPPLEKV_INLINE Vec LoadKvUpTo(const T* p, int64_t n) {
  if (n >= kLanes) return LoadKv(p);
  T lanes[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return LoadKv(lanes);
}

}  // namespace ripplekv::RIPPLEKV_ISA
