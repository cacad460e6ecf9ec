#pragma once

#include <array>
#include <cstdint>

namespace ripplekv {

/// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC
/// 2011): four random words that are a pure function of a counter and a key.
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

/// Which normal numbers a probe adds: one call of Philox gives the four of lanes 4 b ... 4 b + 3
/// (b: lane block).
///   key     = {seed mod 2^32, seed / 2^32}
///   counter = {b + kv_head * 2^16, position, layer, example}
struct NoiseKey {
  uint64_t seed = 0;
  uint32_t example = 0;
  uint32_t layer = 0;
};

/// The four standard normals of a lane block, by Box and Muller in double precision, rounded to
/// fp32:
///   u_i = (word_i + 1) / 2^32, in (0, 1]
///   normal_0 = sqrt(-2 ln u_0) cos(2 pi u_1)    normal_1 = sqrt(-2 ln u_0) sin(2 pi u_1)
///   normal_2 = sqrt(-2 ln u_2) cos(2 pi u_3)    normal_3 = sqrt(-2 ln u_2) sin(2 pi u_3)
/// lane_block and kv_head are below 2^16.
std::array<float, 4> NoiseBlock(const NoiseKey& key, uint32_t kv_head, uint32_t position,
                                uint32_t lane_block);

}  // namespace ripplekv
