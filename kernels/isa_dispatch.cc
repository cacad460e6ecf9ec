// The public kernels that have a build per instruction set.
#include "kernels/argmax.h"
#include "kernels/decode_attention.h"
#include "kernels/isa_functions.h"
#include "kernels/kl_divergence.h"
#include "kernels/packed_matrix.h"
#include "kernels/panel_linear.h"
#include "kernels/panel_linear_avx512vnni.h"
#include "kernels/panel_matrix.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"

namespace ripplekv {

void ExpandRows(const PackedMatrix& w, int64_t row_begin, int64_t row_end, float* out, Isa isa) {
  ForIsa(isa, isa_base::ExpandRows, isa_v3::ExpandRows, isa_v4::ExpandRows)(w, row_begin, row_end,
                                                                            out);
}

void ExpandRows(const PanelMatrix& w, int64_t row_begin, int64_t row_end, float* out, Isa isa) {
  ForIsa(isa, isa_base::ExpandPanelRows, isa_v3::ExpandPanelRows, isa_v4::ExpandPanelRows,
         isa_v4dot::ExpandPanelRows)(w, row_begin, row_end, out);
}

void ExpandRowsBf16(const PanelMatrix& w, int64_t row_begin, int64_t row_end, uint16_t* out,
                    Isa isa) {
  ForIsa(isa, isa_base::ExpandPanelRowsBf16, isa_v3::ExpandPanelRowsBf16,
         isa_v4::ExpandPanelRowsBf16, isa_v4dot::ExpandPanelRowsBf16)(w, row_begin, row_end, out);
}

void ExpandPanelsBf16(const PanelMatrix& w, int64_t panel_begin, int64_t panel_end, uint16_t* out,
                      Isa isa) {
  ForIsa(isa, isa_base::ExpandPanelsBf16, isa_v3::ExpandPanelsBf16, isa_v4::ExpandPanelsBf16,
         isa_v4dot::ExpandPanelsBf16)(w, panel_begin, panel_end, out);
}

void QuantizeInput(const LinearInput& input, int row_begin, int row_end, int64_t group_begin,
                   int64_t group_end) {
  isa_v4dot::QuantizeInput(input, row_begin, row_end, group_begin, group_end);
}

void PanelLinear(const PanelMatrix& w, const LinearInput& input, float* y, int64_t y_stride,
                 bool add, int64_t panel_begin, int64_t panel_end, Isa isa) {
  if (input.type == ActivationType::kInt16 && block_elements(w.type) > 1) {
    isa_v4dot::PanelLinearInt16(w, input, y, y_stride, add, panel_begin, panel_end);
    return;
  }
  ForIsa(isa, isa_base::PanelLinearF32, isa_v3::PanelLinearF32, isa_v4::PanelLinearF32)(
      w, input, y, y_stride, add, panel_begin, panel_end);
}

void DecodeAttentionPartial(const DecodeAttentionArgs& args, int64_t item_begin, int64_t item_end,
                            Isa isa) {
  ForIsa(isa, isa_base::DecodeAttentionPartial, isa_v3::DecodeAttentionPartial,
         isa_v4::DecodeAttentionPartial,
         isa_v4dot::DecodeAttentionPartial)(args, item_begin, item_end);
}

void DecodeAttentionMerge(const DecodeAttentionArgs& args, int64_t begin, int64_t end, Isa isa) {
  ForIsa(isa, isa_base::DecodeAttentionMerge, isa_v3::DecodeAttentionMerge,
         isa_v4::DecodeAttentionMerge)(args, begin, end);
}

ArgMaxResult ArgMax(const float* x, int64_t n, Isa isa) {
  return ForIsa(isa, isa_base::ArgMax, isa_v3::ArgMax, isa_v4::ArgMax)(x, n);
}

void LogSoftmax(const float* logits, int64_t n, float* out, Isa isa) {
  ForIsa(isa, isa_base::LogSoftmax, isa_v3::LogSoftmax, isa_v4::LogSoftmax)(logits, n, out);
}

double KlDivergence(const float* p_log_probs, const float* q_log_probs, int64_t n, Isa isa) {
  return ForIsa(isa, isa_base::KlDivergence, isa_v3::KlDivergence, isa_v4::KlDivergence)(
      p_log_probs, q_log_probs, n);
}

double KlDivergenceOfLogits(const float* p_logits, const float* q_logits, int64_t n, Isa isa) {
  return ForIsa(isa, isa_base::KlDivergenceOfLogits, isa_v3::KlDivergenceOfLogits,
                isa_v4::KlDivergenceOfLogits)(p_logits, q_logits, n);
}

void RmsNorm(const float* x, const float* weight, int64_t cols, float epsilon, float* y,
             int64_t row_begin, int64_t row_end, Isa isa) {
  ForIsa(isa, isa_base::RmsNorm, isa_v3::RmsNorm, isa_v4::RmsNorm)(x, weight, cols, epsilon, y,
                                                                   row_begin, row_end);
}

void RopeLanes(float* x, int64_t n, int64_t lane, int64_t head_dim, const float* cosines,
               const float* sines, Isa isa) {
  ForIsa(isa, isa_base::RopeLanes, isa_v3::RopeLanes, isa_v4::RopeLanes)(x, n, lane, head_dim,
                                                                         cosines, sines);
}

void RmsNormBf16(const float* x, const float* weight, int64_t cols, float epsilon, uint16_t* y,
                 int64_t row_begin, int64_t row_end, Isa isa) {
  ForIsa(isa, isa_base::RmsNormBf16, isa_v3::RmsNormBf16, isa_v4::RmsNormBf16)(
      x, weight, cols, epsilon, y, row_begin, row_end);
}

void SwiGlu(const float* gate, const float* up, int64_t n, float* out, Isa isa) {
  ForIsa(isa, isa_base::SwiGlu, isa_v3::SwiGlu, isa_v4::SwiGlu)(gate, up, n, out);
}

}  // namespace ripplekv
