// Cached rows as vectors, 32 channels at a time: two vectors, in the order of lanes that is
// cheapest to make for the type. Per instruction set, like simd.h.
#pragma once

#include "kernels/kv_type.h"
#include "kernels/simd.h"

namespace ripplekv::RIPPLEKV_ISA {

inline constexpr int kChunk = kKvGroup;  // a group of kInt4

/// Bytes of a chunk, and of its scale and minimum.
template <KvType type>
inline constexpr int kChunkBytes = type == KvType::kF32    ? 4 * kChunk
                                   : type == KvType::kBf16 ? 2 * kChunk
                                   : type == KvType::kInt8 ? kChunk
                                                           : kChunk / 2;
template <KvType type>
inline constexpr int kChunkParamBytes = type == KvType::kInt4 ? 4 : 0;

/// Whether a row has a scale that its chunks leave out.
template <KvType type>
inline constexpr bool kRowScale = type == KvType::kInt8;

struct Chunk {
  Vec a, b;
};

/// The channel of a chunk that lane `lane` of its vector `half` (0: a, 1: b) holds.
RIPPLEKV_INLINE constexpr int ChunkChannel(KvType type, int half, int lane) {
  return type == KvType::kBf16 ? 2 * lane + half : half * kLanes + lane;
}

/// The whole chunk at p, with its scale and minimum at `params`.
template <KvType type>
RIPPLEKV_INLINE Chunk LoadChunk(const std::byte* p, const std::byte* params) {
  Chunk chunk;
  if constexpr (type == KvType::kF32) {
    chunk.a = Load(reinterpret_cast<const float*>(p));
    chunk.b = Load(reinterpret_cast<const float*>(p) + kLanes);
  } else if constexpr (type == KvType::kBf16) {
    LoadBf16Pairs(reinterpret_cast<const uint16_t*>(p), &chunk.a, &chunk.b);
  } else if constexpr (type == KvType::kInt8) {
    chunk.a = LoadInt8(p);
    chunk.b = LoadInt8(p + kLanes);
  } else {
    const uint32_t word = LoadAs<uint32_t>(params);
    const uint32_t scale = word << 16, minimum = word & 0xffff0000u;
    LookUp(MakeNibbleTable(LoadAs<float>(&scale), LoadAs<float>(&minimum)), p, &chunk.a, &chunk.b);
  }
  return chunk;
}

/// Its first `channels`, zeros after them, reading nothing beyond. The quantised types always store
/// whole chunks.
template <KvType type>
RIPPLEKV_INLINE Chunk LoadChunkUpTo(const std::byte* p, const std::byte* params, int channels) {
  if constexpr (type == KvType::kF32 || type == KvType::kBf16) {
    if (channels < kChunk) {
      constexpr int kBytes = kChunkBytes<type> / kChunk;
      alignas(64) std::byte whole[kChunkBytes<type>] = {};
      for (int i = 0; i < channels * kBytes; i += kBytes)
        __builtin_memcpy(whole + i, p + i, kBytes);
      return LoadChunk<type>(whole, params);
    }
  }
  return LoadChunk<type>(p, params);
}

}  // namespace ripplekv::RIPPLEKV_ISA
