// The build of the prefill linears for AVX512-BF16, which x86-64-v4 does not include.
#pragma once

#include "kernels/prefill_linear.h"

namespace ripplekv::isa_v4dot {

void PrefillLinear(const PrefillLinearArgs& args, const uint16_t* w, int64_t rows, float* out,
                   int64_t out_stride, int64_t panel_begin, int64_t panel_end);
void PrefillLinearAdd(const PrefillLinearArgs& args, const uint16_t* w, float* out,
                      int64_t out_stride, int64_t panel_begin, int64_t panel_end);
void PrefillLinearSwiGlu(const PrefillLinearArgs& args, const uint16_t* gate, const uint16_t* up,
                         uint16_t* out, int64_t out_stride, int64_t panel_begin, int64_t panel_end);
void PrefillLinearHeads(const PrefillLinearArgs& args, const uint16_t* w, const PrefillHeads& heads,
                        int64_t panel_begin, int64_t panel_end);

}  // namespace ripplekv::isa_v4dot
