#pragma once

#include <cstdint>

#include "kernels/isa.h"

namespace ripplekv {

/// cos and sin [pairs] of the fp32 product position * inv_freq[i].
void RopeAngles(int64_t position, const float* inv_freq, int pairs, float* cos, float* sin);

/// Rotary embedding in place on x [heads, d]: lanes 2i and 2i + 1 of every head turn by angle i (i
/// < d / 2).
///   x[2i]' = x[2i] cos - x[2i+1] sin      x[2i+1]' = x[2i] sin + x[2i+1] cos
void Rope(float* x, int heads, int head_dim, const float* cos, const float* sin);

/// The same rotation (the same bits) of n numbers of a row of heads, the first of them lane `lane`
/// of its head; lane and n are even. By lane instead of by pair, for l in [0, head_dim + 16):
///   cosines[l] = cos[i]   sines[l] = -sin[i] for even l, sin[i] for odd l   i = (l mod head_dim) /
///   2
void RopeLanes(float* x, int64_t n, int64_t lane, int64_t head_dim, const float* cosines,
               const float* sines, Isa isa = BestIsa());

}  // namespace ripplekv
