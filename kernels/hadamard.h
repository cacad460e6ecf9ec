#pragma once

namespace ripplekv {

inline constexpr int kHadamardBlock = 64;  // channels
inline constexpr float kHadamardScale = 0.125f;
inline constexpr float kHalfHadamardScale = 0.17677669529663687f;  // 1 / sqrt(32)

/// Spreads what single channels hold over their neighbours: out = x with each block of 64 channels
/// multiplied by the Hadamard matrix (Sylvester's, symmetric) / 8, then, where 32 channels or more
/// are left, 32 by theirs / sqrt(32); the channels left after that stay as they are. x and out
/// [head_dim]; they may be the same.
///
/// Orthonormal, so that dot products of two rows transformed are those of the rows, and its own
/// inverse, both to rounding. Numbers above about 2^122 may overflow. One order of additions: the
/// same bits everywhere.
void HadamardRow(const float* x, int head_dim, float* out);

}  // namespace ripplekv
