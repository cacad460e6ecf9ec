#pragma once

#include <cstdint>

#include "kernels/host_device.h"
#include "kernels/philox.h"

namespace ripplekv {

struct PhiloxWords {
  uint32_t word[4];
};

/// Philox4x32-10 (philox.h), for the processor and for the kernels of a GPU.
RIPPLEKV_HOST_DEVICE inline PhiloxWords PhiloxRounds(PhiloxWords counter, uint32_t key_0,
                                                     uint32_t key_1) {
  constexpr uint32_t kMultiplier0 = 0xD2511F53;
  constexpr uint32_t kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9;
  constexpr uint32_t kWeyl1 = 0xBB67AE85;
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const uint32_t* c = counter.word;
    const uint64_t product0 = uint64_t{kMultiplier0} * c[0];
    const uint64_t product1 = uint64_t{kMultiplier1} * c[2];
    counter = {
        {static_cast<uint32_t>(product1 >> 32) ^ c[1] ^ key_0, static_cast<uint32_t>(product1),
         static_cast<uint32_t>(product0 >> 32) ^ c[3] ^ key_1, static_cast<uint32_t>(product0)}};
    key_0 += kWeyl0;
    key_1 += kWeyl1;
  }
  return counter;
}

/// The four words behind the normals of a lane block, packed as NoiseKey says.
RIPPLEKV_HOST_DEVICE inline PhiloxWords NoiseWords(const NoiseKey& key, uint32_t kv_head,
                                                   uint32_t position, uint32_t lane_block) {
  return PhiloxRounds({{lane_block | kv_head << 16, position, key.layer, key.example}},
                      static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32));
}

/// u = (word + 1) / 2^32, in (0, 1].
RIPPLEKV_HOST_DEVICE inline double NoiseUniform(uint32_t word) {
  return (static_cast<double>(word) + 1.0) * 0x1p-32;
}

}  // namespace ripplekv
