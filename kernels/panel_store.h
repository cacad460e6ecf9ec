// Writing the products of a panel. Per instruction set, like simd.h.
#pragma once

#include "kernels/panel_linear.h"
#include "kernels/simd.h"

namespace ripplekv::RIPPLEKV_ISA {

/// Writes (or adds) a panel's outputs for m rows; rows beyond `rows` stay as they are.
RIPPLEKV_INLINE void StorePanel(const float (*total)[kLanes], int m, int64_t panel, int64_t rows,
                                float* y, int64_t y_stride, bool add) {
  const int64_t begin = panel * kPanelRows;
  const int64_t n = rows - begin;
  for (int i = 0; i < m; ++i) {
    float* yi = y + i * y_stride + begin;
    const Vec sum = Load(total[i]);
    if (n >= kLanes) {
      Store(yi, add ? Add(Load(yi), sum) : sum);
    } else {
      StorePart(yi, n, add ? Add(LoadPart(yi, n), sum) : sum);
    }
  }
}

}  // namespace ripplekv::RIPPLEKV_ISA
