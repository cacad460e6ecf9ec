// Reading cached rows on a GPU: 8 channels a thread, as fp32 numbers.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/kv_type.h"

namespace ripplekv {

inline constexpr int kOctet = 8;

/// How a type's rows are read. Raw is what is on its way from memory; all zeros stand for eight
/// zeros. Load takes channels [first, first + 8) of the row and its scales and minima at `params`,
/// zeros from `channels` (what the row holds) on; kWhole: float rows are multiples of 16 bytes and
/// aligned so.
template <KvType type>
struct KvOctet;

template <>
struct KvOctet<KvType::kF32> {
  struct Raw {
    uint4 half[2] = {};
  };
  template <bool kWhole>
  __device__ static Raw Load(const std::byte* row, const std::byte*, int first, int channels) {
    Raw raw;
    if constexpr (kWhole) {
      const uint4* p = reinterpret_cast<const uint4*>(row) + first / 4;
      if (first < channels) raw.half[0] = __ldg(p);
      if (first + 4 < channels) raw.half[1] = __ldg(p + 1);
    } else {
      uint32_t words[kOctet] = {};
#pragma unroll
      for (int i = 0; i < kOctet; ++i) {
        if (first + i < channels) words[i] = reinterpret_cast<const uint32_t*>(row)[first + i];
      }
      raw.half[0] = uint4{words[0], words[1], words[2], words[3]};
      raw.half[1] = uint4{words[4], words[5], words[6], words[7]};
    }
    return raw;
  }
  __device__ static void Unpack(const Raw& raw, float (&x)[kOctet]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      x[4 * i] = __uint_as_float(raw.half[i].x);
      x[4 * i + 1] = __uint_as_float(raw.half[i].y);
      x[4 * i + 2] = __uint_as_float(raw.half[i].z);
      x[4 * i + 3] = __uint_as_float(raw.half[i].w);
    }
  }
};

template <>
struct KvOctet<KvType::kBf16> {
  struct Raw {
    uint4 pairs = {};
  };
  template <bool kWhole>
  __device__ static Raw Load(const std::byte* row, const std::byte*, int first, int channels) {
    Raw raw;
    if constexpr (kWhole) {
      if (first < channels) raw.pairs = __ldg(reinterpret_cast<const uint4*>(row) + first / 8);
    } else {
      uint32_t words[kOctet / 2] = {};
#pragma unroll
      for (int i = 0; i < kOctet; ++i) {
        if (first + i < channels) {
          words[i / 2] |= uint32_t{reinterpret_cast<const uint16_t*>(row)[first + i]}
                          << (i % 2 * 16);
        }
      }
      raw.pairs = uint4{words[0], words[1], words[2], words[3]};
    }
    return raw;
  }
  __device__ static void Unpack(const Raw& raw, float (&x)[kOctet]) {
    const uint32_t words[4] = {raw.pairs.x, raw.pairs.y, raw.pairs.z, raw.pairs.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[2 * i] = __uint_as_float(words[i] << 16);
      x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  }
};

/// The bytes of two words as numbers, minus `offset`: a byte below the bits of 2^23 is 2^23 + byte.
__device__ inline void BytesToFloats(uint2 words, float offset, float (&x)[kOctet]) {
#pragma unroll
  for (int i = 0; i < kOctet; ++i) {
    const uint32_t word = i < 4 ? words.x : words.y;
    const auto selector = static_cast<uint32_t>(0x7440 + i % 4);
    x[i] = __uint_as_float(__byte_perm(word, 0x4b000000u, selector)) - offset;
  }
}

template <>
struct KvOctet<KvType::kInt8> {
  struct Raw {
    uint2 bytes = {};
    float scale = 0;
  };
  template <bool kWhole>
  __device__ static Raw Load(const std::byte* row, const std::byte* params, int first,
                             int channels) {
    Raw raw;
    if (first < channels) {
      raw.bytes = __ldg(reinterpret_cast<const uint2*>(row) + first / 8);
      raw.scale = __ldg(reinterpret_cast<const float*>(params));
    }
    return raw;
  }
  __device__ static void Unpack(const Raw& raw, float (&x)[kOctet]) {
    // + 128, so that the bytes have no sign.
    BytesToFloats(uint2{raw.bytes.x ^ 0x80808080u, raw.bytes.y ^ 0x80808080u}, 8388608.0f + 128.0f,
                  x);
#pragma unroll
    for (int i = 0; i < kOctet; ++i) x[i] *= raw.scale;
  }
};

template <>
struct KvOctet<KvType::kInt4> {
  struct Raw {
    uint2 nibbles = {};
    uint32_t scale_and_minimum = 0;
    int shift = 0;
  };
  /// Byte i of a group of 32 holds channels i and i + 16.
  template <bool kWhole>
  __device__ static Raw Load(const std::byte* row, const std::byte* params, int first,
                             int channels) {
    Raw raw;
    if (first < channels) {
      const int group = first / kKvGroup;
      const int in_group = first % kKvGroup;
      raw.nibbles = __ldg(reinterpret_cast<const uint2*>(row) + group * 2 + in_group % 16 / 8);
      raw.scale_and_minimum = __ldg(reinterpret_cast<const uint32_t*>(params) + group);
      raw.shift = in_group >= 16 ? 4 : 0;
    }
    return raw;
  }
  __device__ static void Unpack(const Raw& raw, float (&x)[kOctet]) {
    BytesToFloats(
        uint2{raw.nibbles.x >> raw.shift & 0x0f0f0f0fu, raw.nibbles.y >> raw.shift & 0x0f0f0f0fu},
        8388608.0f, x);
    const float scale = __uint_as_float(raw.scale_and_minimum << 16);
    const float minimum = __uint_as_float(raw.scale_and_minimum & 0xffff0000u);
#pragma unroll
    for (int i = 0; i < kOctet; ++i) x[i] = fmaf(x[i], scale, minimum);
  }
};

/// Asks for a row's bytes to come to the L2 cache; waits for nothing.
__device__ inline void PrefetchRow(const std::byte* row, uint32_t bytes) {
#ifdef __CUDA_ARCH__
  for (uint32_t at = 0; at < bytes; at += 128) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(row + at));
  }
#else
  static_cast<void>(row);
  static_cast<void>(bytes);
#endif
}

}  // namespace ripplekv
