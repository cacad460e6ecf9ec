#include "kernels/rope.h"

#include <cmath>

namespace ripplekv {

void RopeAngles(int64_t position, const float* inv_freq, int pairs, float* cos, float* sin) {
  for (int i = 0; i < pairs; ++i) {
    const float angle = static_cast<float>(position) * inv_freq[i];
    cos[i] = std::cos(angle);
    sin[i] = std::sin(angle);
  }
}

void Rope(float* x, int heads, int head_dim, const float* cos, const float* sin) {
  const int pairs = head_dim / 2;
  for (int h = 0; h < heads; ++h) {
    float* head = x + static_cast<int64_t>(h) * head_dim;
    for (int i = 0; i < pairs; ++i) {
      const float a = head[2 * i];
      const float b = head[2 * i + 1];
      head[2 * i] = a * cos[i] - b * sin[i];
      head[2 * i + 1] = a * sin[i] + b * cos[i];
    }
  }
}

}  // namespace ripplekv
