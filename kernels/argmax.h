#pragma once

#include <cstdint>

#include "kernels/isa.h"

namespace ripplekv {

struct ArgMaxResult {
  int64_t index = 0;    // of the first of the largest; meaningless where not finite
  bool finite = false;  // whether all are
};

/// x: [n], n >= 1.
ArgMaxResult ArgMax(const float* x, int64_t n, Isa isa = BestIsa());

}  // namespace ripplekv
