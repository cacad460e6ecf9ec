#pragma once

#include <cstdint>

#include "kernels/isa.h"

namespace ripplekv {

/// out[i] = gate[i] / (1 + exp(-gate[i])) * up[i]. out may be gate or up.
void SwiGlu(const float* gate, const float* up, int64_t n, float* out, Isa isa = BestIsa());

}  // namespace ripplekv
