#pragma once

#include "kernels/panel_linear.h"

namespace ripplekv::isa_v4dot {

void QuantizeInput(const LinearInput& input, int row_begin, int row_end, int64_t group_begin,
                   int64_t group_end);

/// Quantised weight types and ActivationType::kInt16 only.
void PanelLinearInt16(const PanelMatrix& w, const LinearInput& input, float* y, int64_t y_stride,
                      bool add, int64_t panel_begin, int64_t panel_end);

}  // namespace ripplekv::isa_v4dot
