#include "kernels/prefill_linear.h"

#include "kernels/isa_functions.h"

namespace ripplekv {

void PrefillLinear(const PrefillLinearArgs& args, const uint16_t* w, int64_t rows, float* out,
                   int64_t out_stride, int64_t panel_begin, int64_t panel_end, Isa isa) {
  ForIsa(isa, isa_base::PrefillLinear, isa_v3::PrefillLinear, isa_v4::PrefillLinear,
         isa_v4dot::PrefillLinear)(args, w, rows, out, out_stride, panel_begin, panel_end);
}

void PrefillLinearAdd(const PrefillLinearArgs& args, const uint16_t* w, float* out,
                      int64_t out_stride, int64_t panel_begin, int64_t panel_end, Isa isa) {
  ForIsa(isa, isa_base::PrefillLinearAdd, isa_v3::PrefillLinearAdd, isa_v4::PrefillLinearAdd,
         isa_v4dot::PrefillLinearAdd)(args, w, out, out_stride, panel_begin, panel_end);
}

void PrefillLinearSwiGlu(const PrefillLinearArgs& args, const uint16_t* gate, const uint16_t* up,
                         uint16_t* out, int64_t out_stride, int64_t panel_begin, int64_t panel_end,
                         Isa isa) {
  ForIsa(isa, isa_base::PrefillLinearSwiGlu, isa_v3::PrefillLinearSwiGlu,
         isa_v4::PrefillLinearSwiGlu,
         isa_v4dot::PrefillLinearSwiGlu)(args, gate, up, out, out_stride, panel_begin, panel_end);
}

void PrefillLinearHeads(const PrefillLinearArgs& args, const uint16_t* w, const PrefillHeads& heads,
                        int64_t panel_begin, int64_t panel_end, Isa isa) {
  ForIsa(isa, isa_base::PrefillLinearHeads, isa_v3::PrefillLinearHeads, isa_v4::PrefillLinearHeads,
         isa_v4dot::PrefillLinearHeads)(args, w, heads, panel_begin, panel_end);
}

}  // namespace ripplekv
