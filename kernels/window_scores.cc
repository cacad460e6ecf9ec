#include "kernels/window_scores.h"

namespace ripplekv {

void MeanOverGroup(const float* scores, int heads, int kv_heads, int64_t positions, float* out) {
  const int group = heads / kv_heads;
  for (int h = 0; h < kv_heads; ++h) {
    const float* in = scores + static_cast<int64_t>(h) * group * positions;
    for (int64_t u = 0; u < positions; ++u) {
      float sum = in[u];
      for (int g = 1; g < group; ++g) sum += in[g * positions + u];
      out[h * positions + u] = sum / static_cast<float>(group);
    }
  }
}

}  // namespace ripplekv
