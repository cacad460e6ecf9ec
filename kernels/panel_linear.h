#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/isa.h"
#include "kernels/panel_matrix.h"

namespace ripplekv {

inline constexpr int kPanelLinearMaxRows = 16;

/// How PanelLinear multiplies weights of quantised types (plain types always take kF32).
enum class ActivationType : uint8_t {
  kF32,    // exact weights and activations, fp32 fused multiply-adds
  kInt16,  // activations rounded to 16 bits by groups of 32, exact integer products (Isa::kV4Dot)
};

/// The fastest type that the instruction set has.
constexpr ActivationType FastestActivations(Isa isa) {
  return isa == Isa::kV4Dot ? ActivationType::kInt16 : ActivationType::kF32;
}

/// m rows of activations for one or several products.
struct LinearInput {
  const float* x = nullptr;  // [m, cols], row i at x + i * x_stride
  int64_t x_stride = 0;
  int m = 0;  // 1 to kPanelLinearMaxRows
  int64_t cols = 0;
  ActivationType type = ActivationType::kF32;
  /// kInt16: quantized_input_bytes, 64-byte aligned, filled by QuantizeInput. Otherwise unused.
  std::byte* quantized = nullptr;
};

/// Bytes of LinearInput::quantized: per group of 32 columns and row two halves of 32 int8 and 16
/// bytes of scales and sums.
constexpr int64_t quantized_input_bytes(int m, int64_t cols) {
  return (cols + kPanelGroup - 1) / kPanelGroup * m * 80;
}

/// Fills `quantized` for rows [row_begin, row_end) and groups of 32 columns [group_begin,
/// group_end). cols is a multiple of 32. Needs Isa::kV4Dot.
///
/// A group of a row becomes s * q with s = max(max |x|, 2^-96) / 32639 and integers q = round(x /
/// s), so that |x - s q| <= s / 2 (and a few fp32 roundings). A group that holds an infinity or a
/// NaN becomes NaN, and with it every sum it enters.
void QuantizeInput(const LinearInput& input, int row_begin, int row_end, int64_t group_begin,
                   int64_t group_end);

/// y[i * y_stride + r] = (add: itself +) sum over k of w[r, k] * x[i, k] for i in [0, m) and rows r
/// of the panels [panel_begin, panel_end). y must not overlap x. input.cols is w.cols.
///
/// The bits of y[i, r] depend on row i of x and row r of w only, not on m, the range, threads or
/// alignment (per Isa and ActivationType):
///   kF32    groups of 32 columns one after the other; a group's even and odd columns are summed
///           apart, in the order of the storage, then together;
///   kInt16  groups one after the other: fma(integer sum, d * s, y), then for minima
///           fma(m, s * sum of q, y).
void PanelLinear(const PanelMatrix& w, const LinearInput& input, float* y, int64_t y_stride,
                 bool add, int64_t panel_begin, int64_t panel_end, Isa isa = BestIsa());

}  // namespace ripplekv
