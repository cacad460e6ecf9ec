#include "kernels/isa_functions.h"
#include "kernels/simd.h"

namespace ripplekv::RIPPLEKV_ISA {
namespace {

constexpr int64_t kBlock = 512;  // searched for the index

}  // namespace

ArgMaxResult ArgMax(const float* x, int64_t n) {
  float best = -__builtin_inff();
  int64_t best_block = 0;
  Vec products = Zero();  // of every element and 0: NaN for what is not finite
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = n - begin < kBlock ? n : begin + kBlock;
    Vec high = Set(-__builtin_inff());
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      const Vec v = Load(x + i);
      high = Max(high, v);
      products = Fma(v, Zero(), products);
    }
    if (i < end) {
      high = Max(high, LoadPart(x + i, end - i, x[i]));
      products = Fma(LoadPart(x + i, end - i), Zero(), products);
    }
    const float max = MaxLane(high);
    if (max > best) {
      best = max;
      best_block = begin;
    }
  }
  ArgMaxResult result = {best_block, Sum(products) == 0};
  while (result.finite && x[result.index] != best) ++result.index;
  return result;
}

}  // namespace ripplekv::RIPPLEKV_ISA
