#include "kernels/isa_functions.h"
#include "kernels/silu.h"

namespace ripplekv::RIPPLEKV_ISA {

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
