// The panels of a prefill linear. Per instruction set, like simd.h.
#pragma once

#include "kernels/prefill_linear.h"
#include "kernels/simd.h"

namespace ripplekv::RIPPLEKV_ISA {

RIPPLEKV_INLINE const uint16_t* PanelAt(const PrefillLinearArgs& args, const uint16_t* w,
                                        int64_t panel) {
  return w + panel * kPrefillLinearRows * args.cols;
}

/// finish(panel, token, sums) for panels [panel_begin, panel_end) of w, two at a time:
/// multiply(pointers to n panels, f) calls f(token, sums of the n panels) for all tokens.
template <typename Sums, typename Multiply, typename Finish>
RIPPLEKV_INLINE void ForPanels(const PrefillLinearArgs& args, const uint16_t* w,
                               int64_t panel_begin, int64_t panel_end, const Multiply& multiply,
                               const Finish& finish) {
  int64_t panel = panel_begin;
  for (; panel + 2 <= panel_end; panel += 2) {
    const uint16_t* const pair[] = {PanelAt(args, w, panel), PanelAt(args, w, panel + 1)};
    multiply(pair, [&](int64_t t, const Sums(&sums)[2]) RIPPLEKV_INLINE_LAMBDA {
      finish(panel, t, sums[0]);
      finish(panel + 1, t, sums[1]);
    });
  }
  if (panel == panel_end) return;
  const uint16_t* const last[] = {PanelAt(args, w, panel)};
  multiply(last, [&](int64_t t, const Sums(&sums)[1])
                     RIPPLEKV_INLINE_LAMBDA { finish(panel, t, sums[0]); });
}

}  // namespace ripplekv::RIPPLEKV_ISA
