// EncodeKvRow (kernels/kv_codec.h) on a GPU: a warp rounds a row, to the same bits.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/hadamard.cuh"
#include "kernels/kv_type.h"

namespace ripplekv::cuda_encode {

inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr int kWarp = 32;
inline constexpr float kLeast = 0x1p-100f;
inline constexpr int32_t kInfinity = 0x7f800000;

__device__ inline int32_t Bits(float x) { return static_cast<int32_t>(__float_as_uint(x)); }
__device__ inline float FromBits(int32_t bits) {
  return __uint_as_float(static_cast<uint32_t>(bits));
}
__device__ inline int32_t Round(float x) { return Bits(x + 12582912.0f) - 0x4b400000; }
__device__ inline int32_t Ordered(int32_t bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }

__device__ inline int32_t MaxOfWarp(int32_t x) {
#pragma unroll
  for (int offset = kWarp / 2; offset >= 1; offset /= 2) {
    const int32_t other = __shfl_xor_sync(kAllLanes, x, offset);
    x = other > x ? other : x;
  }
  return x;
}

/// x(channel) is channel 0 ... n - 1 of the row; lane l calls it for channels l, l + 32, ...
template <typename X>
__device__ void EncodeInt8(const X& x, int n, int lane, std::byte* row, std::byte* params) {
  int32_t most = 0;
  for (int c = lane; c < n; c += kWarp) {
    const int32_t magnitude = Bits(x(c)) & 0x7fffffff;
    most = magnitude > most ? magnitude : most;
  }
  most = MaxOfWarp(most);
  const float largest = FromBits(most);
  const bool zero = largest < kLeast || most >= kInfinity;
  const float inverse = zero ? 0.0f : 127.0f / largest;
  if (lane == 0) {
    const int32_t scale = most >= kInfinity ? 0x7fc00000 : zero ? 0 : Bits(largest / 127.0f);
    *reinterpret_cast<int32_t*>(params) = scale;
  }
  for (int c = lane; c < KvGroups(n) * kKvGroup; c += kWarp) {
    const int32_t q = zero || c >= n ? 0 : Round(x(c) * inverse);
    reinterpret_cast<int8_t*>(row)[c] = static_cast<int8_t>(q);
  }
}

/// A lane a channel of the group.
__device__ inline void EncodeInt4Group(float x, int lane, uint8_t* q, std::byte* params) {
  const int32_t ordered = Ordered(Bits(x));
  const int32_t low = Ordered(~MaxOfWarp(~ordered)), high = Ordered(MaxOfWarp(ordered));
  const bool finite = (low & 0x7fffffff) < kInfinity && (high & 0x7fffffff) < kInfinity;
  int32_t minimum_bits = low & ~0xffff;
  if (low < 0 && minimum_bits != low) minimum_bits += 0x10000;
  const float minimum = FromBits(minimum_bits);
  const float range = FromBits(high) - minimum;
  int32_t scale_bits = range < kLeast ? 0 : (Bits(range / 15.0f) + 0xffff) & ~0xffff;
  const bool usable = finite && (minimum_bits & 0x7fffffff) < kInfinity &&
                      Bits(range) < kInfinity && scale_bits < kInfinity;
  if (!usable) scale_bits = minimum_bits = 0x7fc00000;
  const float inverse = usable && scale_bits != 0 ? 1.0f / FromBits(scale_bits) : 0.0f;
  int32_t code = usable ? Round((x - minimum) * inverse) : 0;
  code = code < 15 ? code : 15;
  const int32_t other = __shfl_xor_sync(kAllLanes, code, kWarp / 2);
  if (lane < kWarp / 2) q[lane] = static_cast<uint8_t>(code | other << 4);
  if (lane == 0) {
    *reinterpret_cast<uint32_t*>(params) =
        static_cast<uint32_t>(scale_bits) >> 16 | static_cast<uint32_t>(minimum_bits);
  }
}

template <typename X>
__device__ void EncodeInt4(KvRole role, const X& x, int n, int lane, std::byte* row,
                           std::byte* params) {
  for (int first = 0; first < n; first += kHadamardBlock) {
    // Lanes behind the last channel count as the group's first.
    const auto channel = [&](int group) { return x(group + lane < n ? group + lane : group); };
    const int second = first + kKvGroup;
    HadamardPair pair{channel(first), second < n ? channel(second) : 0.0f};
    if (IsTransformed(role, KvType::kInt4)) pair.Transform(n - first, lane);
    EncodeInt4Group(pair.low, lane, reinterpret_cast<uint8_t*>(row) + first / 2,
                    params + first / kKvGroup * 4);
    if (second < n) {
      EncodeInt4Group(pair.high, lane, reinterpret_cast<uint8_t*>(row) + second / 2,
                      params + second / kKvGroup * 4);
    }
  }
}

template <typename X>
__device__ void EncodeRow(KvRole role, KvType type, const X& x, int n, int lane, std::byte* row,
                          std::byte* params) {
  switch (type) {
    case KvType::kF32:
      for (int c = lane; c < n; c += kWarp) reinterpret_cast<float*>(row)[c] = x(c);
      return;
    case KvType::kBf16:
      for (int c = lane; c < n; c += kWarp) {
        reinterpret_cast<uint16_t*>(row)[c] = FloatToBf16(x(c));
      }
      return;
    case KvType::kInt8:
      return EncodeInt8(x, n, lane, row, params);
    case KvType::kInt4:
      return EncodeInt4(role, x, n, lane, row, params);
  }
}

}  // namespace ripplekv::cuda_encode
