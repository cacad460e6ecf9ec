// The kernels that are compiled once per instruction set, each set in its namespace.
#pragma once

#include <cstdint>

#include "kernels/argmax.h"
#include "kernels/decode_attention.h"
#include "kernels/isa.h"
#include "kernels/key_scores.h"
#include "kernels/kv_type.h"
#include "kernels/packed_matrix.h"
#include "kernels/panel_linear.h"
#include "kernels/panel_matrix.h"
#include "kernels/prefill_attention.h"
#include "kernels/prefill_linear.h"

#define RIPPLEKV_DECLARE_KERNELS(isa_namespace)                                                   \
  namespace isa_namespace {                                                                       \
  void ExpandRows(const PackedMatrix& w, int64_t row_begin, int64_t row_end, float* out);         \
  void ExpandPanelRows(const PanelMatrix& w, int64_t row_begin, int64_t row_end, float* out);     \
  void ExpandPanelRowsBf16(const PanelMatrix& w, int64_t row_begin, int64_t row_end,              \
                           uint16_t* out);                                                        \
  void ExpandPanelsBf16(const PanelMatrix& w, int64_t panel_begin, int64_t panel_end,             \
                        uint16_t* out);                                                           \
  void PanelLinearF32(const PanelMatrix& w, const LinearInput& input, float* y, int64_t y_stride, \
                      bool add, int64_t panel_begin, int64_t panel_end);                          \
  void DecodeAttentionPartial(const DecodeAttentionArgs& args, int64_t begin, int64_t end);       \
  void DecodeAttentionMerge(const DecodeAttentionArgs& args, int64_t begin, int64_t end);         \
  void EncodeKvRow(KvType type, const float* x, int n, std::byte* row, std::byte* params);        \
  ArgMaxResult ArgMax(const float* x, int64_t n);                                                 \
  void LogSoftmax(const float* logits, int64_t n, float* out);                                    \
  double KlDivergence(const float* p, const float* q, int64_t n);                                 \
  double KlDivergenceOfLogits(const float* p, const float* q, int64_t n);                         \
  void RmsNorm(const float* x, const float* weight, int64_t cols, float epsilon, float* y,        \
               int64_t row_begin, int64_t row_end);                                               \
  void RopeLanes(float* x, int64_t n, int64_t lane, int64_t head_dim, const float* cosines,       \
                 const float* sines);                                                             \
  void RmsNormBf16(const float* x, const float* weight, int64_t cols, float epsilon, uint16_t* y, \
                   int64_t row_begin, int64_t row_end);                                           \
  void SwiGlu(const float* gate, const float* up, int64_t n, float* out);                         \
  void KeyScoresPart(const KeyScoresArgs& args, int head, int query_begin, int query_end,         \
                     float* scratch, float* sums);                                                \
  void PrefillLinear(const PrefillLinearArgs& args, const uint16_t* w, int64_t rows, float* out,  \
                     int64_t out_stride, int64_t panel_begin, int64_t panel_end);                 \
  void PrefillLinearAdd(const PrefillLinearArgs& args, const uint16_t* w, float* out,             \
                        int64_t out_stride, int64_t panel_begin, int64_t panel_end);              \
  void PrefillLinearSwiGlu(const PrefillLinearArgs& args, const uint16_t* gate,                   \
                           const uint16_t* up, uint16_t* out, int64_t out_stride,                 \
                           int64_t panel_begin, int64_t panel_end);                               \
  void PrefillLinearHeads(const PrefillLinearArgs& args, const uint16_t* w,                       \
                          const PrefillHeads& heads, int64_t panel_begin, int64_t panel_end);     \
  void PrefillAttentionRange(const PrefillAttentionArgs& args, int item_rows, int64_t item_begin, \
                             int64_t item_end);                                                   \
  }

namespace ripplekv {

/// Queries that KeyScoresPart takes at once; `scratch` holds [rows, lanes].
inline constexpr int kKeyScoresLanes = 16;

RIPPLEKV_DECLARE_KERNELS(isa_base)
RIPPLEKV_DECLARE_KERNELS(isa_v3)
RIPPLEKV_DECLARE_KERNELS(isa_v4)

namespace isa_v4dot {
void DecodeAttentionPartial(const DecodeAttentionArgs& args, int64_t begin, int64_t end);
void KeyScoresPart(const KeyScoresArgs& args, int head, int query_begin, int query_end,
                   float* scratch, float* sums);
void ExpandPanelRows(const PanelMatrix& w, int64_t row_begin, int64_t row_end, float* out);
void ExpandPanelRowsBf16(const PanelMatrix& w, int64_t row_begin, int64_t row_end, uint16_t* out);
void ExpandPanelsBf16(const PanelMatrix& w, int64_t panel_begin, int64_t panel_end, uint16_t* out);
void PrefillLinear(const PrefillLinearArgs& args, const uint16_t* w, int64_t rows, float* out,
                   int64_t out_stride, int64_t panel_begin, int64_t panel_end);
void PrefillLinearAdd(const PrefillLinearArgs& args, const uint16_t* w, float* out,
                      int64_t out_stride, int64_t panel_begin, int64_t panel_end);
void PrefillLinearSwiGlu(const PrefillLinearArgs& args, const uint16_t* gate, const uint16_t* up,
                         uint16_t* out, int64_t out_stride, int64_t panel_begin, int64_t panel_end);
void PrefillLinearHeads(const PrefillLinearArgs& args, const uint16_t* w, const PrefillHeads& heads,
                        int64_t panel_begin, int64_t panel_end);
void PrefillAttentionRange(const PrefillAttentionArgs& args, int item_rows, int64_t item_begin,
                           int64_t item_end);
}  // namespace isa_v4dot

/// The build of a kernel for an instruction set; v4_dot where the kernel has its own for kV4Dot.
template <typename Function>
Function* ForIsa(Isa isa, Function* base, Function* v3, Function* v4, Function* v4_dot) {
  switch (isa) {
    case Isa::kBase:
      return base;
    case Isa::kV3:
      return v3;
    case Isa::kV4:
      return v4;
    case Isa::kV4Dot:
      return v4_dot;
  }
  return base;
}

template <typename Function>
Function* ForIsa(Isa isa, Function* base, Function* v3, Function* v4) {
  return ForIsa(isa, base, v3, v4, v4);
}

}  // namespace ripplekv
