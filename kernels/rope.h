#pragma once

#include <cstdint>

namespace ripplekv {

/// cos and sin [pairs] of the fp32 product position * inv_freq[i].
void RopeAngles(int64_t position, const float* inv_freq, int pairs, float* cos, float* sin);

/// Rotary embedding in place on x [heads, d]: lanes 2i and 2i + 1 of every head turn by angle i (i
/// < d / 2).
///   x[2i]' = x[2i] cos - x[2i+1] sin      x[2i+1]' = x[2i] sin + x[2i+1] cos
void Rope(float* x, int heads, int head_dim, const float* cos, const float* sin);

}  // namespace ripplekv
