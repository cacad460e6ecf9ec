#include "kernels/philox.h"

#include <cmath>
#include <numbers>

#include "kernels/philox_words.h"

namespace ripplekv {

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  const PhiloxWords words =
      PhiloxRounds({{counter[0], counter[1], counter[2], counter[3]}}, key[0], key[1]);
  return {words.word[0], words.word[1], words.word[2], words.word[3]};
}

std::array<float, 4> NoiseBlock(const NoiseKey& key, uint32_t kv_head, uint32_t position,
                                uint32_t lane_block) {
  const PhiloxWords words = NoiseWords(key, kv_head, position, lane_block);
  std::array<float, 4> normals;
  for (int pair = 0; pair < 2; ++pair) {
    const double radius = std::sqrt(-2.0 * std::log(NoiseUniform(words.word[2 * pair])));
    const double angle = 2.0 * std::numbers::pi * NoiseUniform(words.word[2 * pair + 1]);
    normals[2 * pair] = static_cast<float>(radius * std::cos(angle));
    normals[2 * pair + 1] = static_cast<float>(radius * std::sin(angle));
  }
  return normals;
}

}  // namespace ripplekv
