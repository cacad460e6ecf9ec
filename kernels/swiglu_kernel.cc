#include "kernels/isa_functions.h"
#include "kernels/simd.h"

namespace ripplekv::RIPPLEKV_ISA {
namespace {

RIPPLEKV_INLINE Vec SiluTimes(Vec gate, Vec up) {
  const Vec one = Set(1.0f);
  return Mul(Div(gate, Add(one, Exp(Sub(Zero(), gate)))), up);
}

}  // namespace

void SwiGlu(const float* gate, const float* up, int64_t n, float* out) {
  const int64_t whole = n / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    Store(out + i, SiluTimes(Load(gate + i), Load(up + i)));
  }
  if (whole < n) {
    StorePart(out + whole, n - whole,
              SiluTimes(LoadPart(gate + whole, n - whole), LoadPart(up + whole, n - whole)));
  }
}

}  // namespace ripplekv::RIPPLEKV_ISA
