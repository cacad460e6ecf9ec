// Cached rows as vectors, 32 channels at a time: two vectors, in the order of lanes that is
// cheapest to make for the type. Per instruction set, like simd.h.
#pragma once

#include "kernels/kv_type.h"
#include "kernels/simd.h"

namespace ripplekv::RIPPLEKV_ISA {

inline constexpr int kChunk = 2 * kLanes;

struct Chunk {
  Vec a, b;
};

/// The channel of a chunk that lane `lane` of its vector `half` (0: a, 1: b) holds.
RIPPLEKV_INLINE constexpr int ChunkChannel(KvType type, int half, int lane) {
  return type == KvType::kBf16 ? 2 * lane + half : half * kLanes + lane;
}

/// The whole chunk at p.
template <KvType type>
RIPPLEKV_INLINE Chunk LoadChunk(const std::byte* p) {
  Chunk chunk;
  if constexpr (type == KvType::kBf16) {
    LoadBf16Pairs(reinterpret_cast<const uint16_t*>(p), &chunk.a, &chunk.b);
  } else {
    chunk.a = Load(reinterpret_cast<const float*>(p));
    chunk.b = Load(reinterpret_cast<const float*>(p) + kLanes);
  }
  return chunk;
}

/// Its first `channels`, zeros after them; reads nothing beyond.
template <KvType type>
RIPPLEKV_INLINE Chunk LoadChunkUpTo(const std::byte* p, int channels) {
  constexpr int kBytes = type == KvType::kBf16 ? 2 : 4;
  if (channels >= kChunk) return LoadChunk<type>(p);
  alignas(64) std::byte whole[kChunk * kBytes] = {};
  __builtin_memcpy(whole, p, static_cast<size_t>(channels) * kBytes);
  return LoadChunk<type>(whole);
}

}  // namespace ripplekv::RIPPLEKV_ISA
