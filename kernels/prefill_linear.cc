#include "kernels/prefill_linear.h"

#include "kernels/isa.h"
#include "kernels/prefill_linear_avx512bf16.h"

namespace ripplekv {

bool PrefillLinearSupported() {
  static const bool supported = IsaSupported(Isa::kV4Dot);
  return supported;
}

void PrefillLinear(const PrefillLinearArgs& args, const uint16_t* w, int64_t rows, float* out,
                   int64_t out_stride, int64_t panel_begin, int64_t panel_end) {
  isa_v4dot::PrefillLinear(args, w, rows, out, out_stride, panel_begin, panel_end);
}

void PrefillLinearAdd(const PrefillLinearArgs& args, const uint16_t* w, float* out,
                      int64_t out_stride, int64_t panel_begin, int64_t panel_end) {
  isa_v4dot::PrefillLinearAdd(args, w, out, out_stride, panel_begin, panel_end);
}

void PrefillLinearSwiGlu(const PrefillLinearArgs& args, const uint16_t* gate, const uint16_t* up,
                         uint16_t* out, int64_t out_stride, int64_t panel_begin,
                         int64_t panel_end) {
  isa_v4dot::PrefillLinearSwiGlu(args, gate, up, out, out_stride, panel_begin, panel_end);
}

void PrefillLinearHeads(const PrefillLinearArgs& args, const uint16_t* w, const PrefillHeads& heads,
                        int64_t panel_begin, int64_t panel_end) {
  isa_v4dot::PrefillLinearHeads(args, w, heads, panel_begin, panel_end);
}

}  // namespace ripplekv
