// Per instruction set, like simd.h.
#pragma once

#include "kernels/simd.h"

namespace ripplekv::RIPPLEKV_ISA {

RIPPLEKV_INLINE Vec SiluTimes(Vec gate, Vec up) {
  return Mul(Div(gate, Add(Set(1.0f), Exp(Sub(Zero(), gate)))), up);
}

}  // namespace ripplekv::RIPPLEKV_ISA
