#include "kernels/hadamard.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace ripplekv {
namespace {

typedef float Float4 __attribute__((vector_size(16)));
typedef int32_t Int4 __attribute__((vector_size(16)));

/// n = 2^passes. A pass adds and subtracts the channels that lie n / 2 apart and puts the two
/// results side by side, which moves the channels' numbers by one bit: the last one brings all back
/// to their places. Those that meet are n / 2, n / 4, ... 1 apart in the row.
template <int n, int passes>
void Block(const float* x, float scale, float* out) {
  static_assert(n == 1 << passes);
  constexpr int kVectors = n / 4;
  Float4 now[kVectors], next[kVectors];
  std::memcpy(now, x, sizeof now);
#pragma GCC unroll 6
  for (int pass = 0; pass < passes; ++pass) {
#pragma GCC unroll 8
    for (int i = 0; i < kVectors / 2; ++i) {
      const Float4 sum = now[i] + now[i + kVectors / 2];
      const Float4 difference = now[i] - now[i + kVectors / 2];
      next[2 * i] = __builtin_shuffle(sum, difference, Int4{0, 4, 1, 5});
      next[2 * i + 1] = __builtin_shuffle(sum, difference, Int4{2, 6, 3, 7});
    }
    std::memcpy(now, next, sizeof now);
  }
  for (Float4& vector : now) vector *= scale;
  std::memcpy(out, now, sizeof now);
}

}  // namespace

void HadamardRow(const float* x, int head_dim, float* out) {
  constexpr int kHalf = kHadamardBlock / 2;
  int c = 0;
  for (; c + kHadamardBlock <= head_dim; c += kHadamardBlock) {
    Block<kHadamardBlock, 6>(x + c, kHadamardScale, out + c);
  }
  if (c + kHalf <= head_dim) {
    Block<kHalf, 5>(x + c, kHalfHadamardScale, out + c);
    c += kHalf;
  }
  if (x != out) std::copy(x + c, x + head_dim, out + c);
}

}  // namespace ripplekv
