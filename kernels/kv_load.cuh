// Reading cached rows on a GPU: 16 bytes a thread, as fp32 numbers.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/bf16.h"

namespace ripplekv {

/// How a type's rows are read: kElements numbers lie in 16 bytes.
template <typename T>
struct KvVector;

template <>
struct KvVector<float> {
  static constexpr int kElements = 4;
  __device__ static void Unpack(uint4 raw, float (&x)[4]) {
    x[0] = __uint_as_float(raw.x);
    x[1] = __uint_as_float(raw.y);
    x[2] = __uint_as_float(raw.z);
    x[3] = __uint_as_float(raw.w);
  }
};

template <>
struct KvVector<uint16_t> {
  static constexpr int kElements = 8;
  __device__ static void Unpack(uint4 raw, float (&x)[8]) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[2 * i] = __uint_as_float(words[i] << 16);
      x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  }
};

/// Elements [first, first + kElements) of a row, zeros from `head_dim` on. kWhole: rows are
/// multiples of 16 bytes and aligned so.
template <typename T, bool kWhole>
__device__ uint4 LoadKv(const std::byte* row, int first, int head_dim) {
  if (first >= head_dim) return uint4{0, 0, 0, 0};
  if constexpr (kWhole) {
    return __ldg(reinterpret_cast<const uint4*>(row) + first / KvVector<T>::kElements);
  } else {
    const T* p = reinterpret_cast<const T*>(row) + first;
    constexpr int kPerWord = static_cast<int>(sizeof(uint32_t) / sizeof(T));
    uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < KvVector<T>::kElements; ++i) {
      if (first + i < head_dim) {
        uint32_t bits;
        if constexpr (kPerWord == 1) {
          bits = __float_as_uint(p[i]);
        } else {
          bits = p[i];
        }
        words[i / kPerWord] |= bits << (i % kPerWord * 16);
      }
    }
    return uint4{words[0], words[1], words[2], words[3]};
  }
}

/// Asks for a row's bytes to come to the L2 cache; waits for nothing.
__device__ inline void PrefetchRow(const std::byte* row, int bytes) {
#ifdef __CUDA_ARCH__
  for (int at = 0; at < bytes; at += 128) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(row + at));
  }
#else
  static_cast<void>(row);
  static_cast<void>(bytes);
#endif
}

}  // namespace ripplekv
