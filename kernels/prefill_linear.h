#pragma once

#include <cstdint>

#include "kernels/isa.h"

namespace ripplekv {

/// Linear layers of many tokens in bf16 with fp32 accumulation, and what follows them on the way to
/// memory. Weights lie in panels of 16 outputs and pairs of inputs, [rows / 16][cols / 2][16][2]
/// (kernels/panel_matrix.h, ExpandPanelsBf16). Each function computes panels [panel_begin,
/// panel_end) for all tokens.
///
/// A sum runs over the inputs in order: its bits depend on its token and its output only, not on
/// the other tokens, the ranges, threads or where arrays lie. kV4Dot takes two inputs at a time and
/// counts subnormal ones as 0.
struct PrefillLinearArgs {
  int tokens = 0;
  int64_t cols = 0;             // a multiple of kPrefillLinearCols
  const uint16_t* x = nullptr;  // [tokens, cols], bf16
};

inline constexpr int kPrefillLinearRows = 16;
inline constexpr int kPrefillLinearCols = 2;

/// out[t * out_stride + r] = w[r] x[t], in fp32, for outputs r < rows.
void PrefillLinear(const PrefillLinearArgs& args, const uint16_t* w, int64_t rows, float* out,
                   int64_t out_stride, int64_t panel_begin, int64_t panel_end, Isa isa = BestIsa());

/// out[t * out_stride + r] += w[r] x[t], in fp32.
void PrefillLinearAdd(const PrefillLinearArgs& args, const uint16_t* w, float* out,
                      int64_t out_stride, int64_t panel_begin, int64_t panel_end,
                      Isa isa = BestIsa());

/// out[t * out_stride + r] = silu(gate[r] x[t]) * (up[r] x[t]), in fp32 and then rounded to bf16.
void PrefillLinearSwiGlu(const PrefillLinearArgs& args, const uint16_t* gate, const uint16_t* up,
                         uint16_t* out, int64_t out_stride, int64_t panel_begin, int64_t panel_end,
                         Isa isa = BestIsa());

/// Where an attention input goes, and its rotation.
struct PrefillHeads {
  int head_dim = 0;  // a multiple of kPrefillLinearRows
  uint16_t* out = nullptr;
  int64_t head_stride = 0;   // elements
  int64_t token_stride = 0;  // elements
  /// cos and sin of token t's angle i at rope[t * head_dim + i] and rope[t * head_dim + head_dim /
  /// 2
  /// + i]: outputs 2 i and 2 i + 1 of a head turn by angle i (kernels/rope.h). Null: no rotation.
  const float* rope = nullptr;
};

/// out[h * head_stride + t * token_stride + c] = output h * head_dim + c of w x[t], rotated in fp32
/// and then rounded to bf16.
void PrefillLinearHeads(const PrefillLinearArgs& args, const uint16_t* w, const PrefillHeads& heads,
                        int64_t panel_begin, int64_t panel_end, Isa isa = BestIsa());

}  // namespace ripplekv
