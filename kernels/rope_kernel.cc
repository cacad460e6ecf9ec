#include "kernels/isa_functions.h"
#include "kernels/simd.h"

namespace ripplekv::RIPPLEKV_ISA {

void RopeLanes(float* x, int64_t n, int64_t lane, int64_t head_dim, const float* cosines,
               const float* sines) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const float* c = cosines + lane;
    const float* s = sines + lane;
    // The next one's lane: a division takes longer than all the rest.
    for (lane += kLanes; lane >= head_dim;) lane -= head_dim;
    if (n - i >= kLanes) {
      const Vec v = Load(x + i);
      Store(x + i, Add(Mul(v, Load(c)), Mul(SwapPairs(v), Load(s))));
    } else {
      const Vec v = LoadPart(x + i, n - i);
      StorePart(x + i, n - i, Add(Mul(v, Load(c)), Mul(SwapPairs(v), Load(s))));
    }
  }
}

}  // namespace ripplekv::RIPPLEKV_ISA
