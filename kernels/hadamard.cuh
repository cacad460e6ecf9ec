// HadamardRow (kernels/hadamard.h) on a GPU: a warp takes a block, to the same bits.
#pragma once

#include <cuda_runtime.h>

#include "kernels/hadamard.h"

namespace ripplekv {

/// Channels l and l + 32 of a block, in lane l.
struct HadamardPair {
  float low, high;

  /// channels: of the row from the block's first on. All lanes of the warp come.
  __device__ void Transform(int channels, int lane) {
    constexpr int kHalf = kHadamardBlock / 2;
    if (channels < kHalf) return;
    const bool whole = channels >= kHadamardBlock;
    if (whole) *this = {low + high, low - high};
    const float scale = whole ? kHadamardScale : kHalfHadamardScale;
    low = OfHalf(low, lane) * scale;
    if (whole) high = OfHalf(high, lane) * scale;
  }

 private:
  __device__ static float OfHalf(float x, int lane) {
#pragma unroll
    for (int offset = kHadamardBlock / 4; offset >= 1; offset /= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, x, offset);
      x = (lane & offset) != 0 ? other - x : x + other;
    }
    return x;
  }
};

}  // namespace ripplekv
