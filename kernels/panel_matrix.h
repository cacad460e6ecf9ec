#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/isa.h"
#include "kernels/packed_matrix.h"
#include "kernels/tensor_type.h"

namespace ripplekv {

inline constexpr int kPanelRows = 16;
inline constexpr int kPanelGroup = 32;  // columns

/// Weights [rows = outputs, cols = inputs] repacked, no value changed, for kernels whose lanes are
/// outputs: panels of 16 rows one after the other, rows beyond the last one zero. A panel holds its
/// columns in groups of 32 (columns beyond the last one zero), first all groups' numbers, then all
/// groups' scales. A group's numbers, little endian:
///   F32   [32 columns][16 rows] fp32
///   F16   [32 columns][16 rows] fp16
///   BF16  [16][16 rows][2 columns] bf16
///   Q8_0  [8][16 rows][4 columns] int8                          scales: fp16 d[16]
///   Q4_0  [4][16 rows][4 bytes]: byte j of vector v holds       scales: fp16 d[16]
///   Q4_1  column 4v + j in its low half, 16 + 4v + j in         scales: fp16 d[16], fp16 m[16]
///         its high half
struct PanelMatrix {
  TensorType type = TensorType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  const std::byte* data = nullptr;  // 64-byte aligned

  int64_t panels() const { return (rows + kPanelRows - 1) / kPanelRows; }
  int64_t groups() const { return (cols + kPanelGroup - 1) / kPanelGroup; }
};

/// Bytes of a group's numbers.
constexpr int64_t panel_group_bytes(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return 2048;
    case TensorType::kF16:
    case TensorType::kBF16:
      return 1024;
    case TensorType::kQ8_0:
      return 512;
    case TensorType::kQ4_0:
    case TensorType::kQ4_1:
      return 256;
  }
  return 2048;
}

/// Bytes of a group's scales.
constexpr int64_t panel_scale_bytes(TensorType type) {
  switch (type) {
    case TensorType::kF32:
    case TensorType::kF16:
    case TensorType::kBF16:
      return 0;
    case TensorType::kQ8_0:
    case TensorType::kQ4_0:
      return 32;
    case TensorType::kQ4_1:
      return 64;
  }
  return 0;
}

/// Bytes of one panel, a multiple of 64.
constexpr int64_t panel_bytes(TensorType type, int64_t cols) {
  const int64_t groups = (cols + kPanelGroup - 1) / kPanelGroup;
  return (groups * (panel_group_bytes(type) + panel_scale_bytes(type)) + 63) / 64 * 64;
}

/// Bytes of the whole matrix, a multiple of 64.
constexpr int64_t panel_matrix_bytes(TensorType type, int64_t rows, int64_t cols) {
  return (rows + kPanelRows - 1) / kPanelRows * panel_bytes(type, cols);
}

/// Writes panels [panel_begin, panel_end) of `w` to where they belong in `out`, which holds
/// panel_matrix_bytes.
void RepackPanels(const PackedMatrix& w, int64_t panel_begin, int64_t panel_end, std::byte* out);

/// out [row_end - row_begin, cols] = the exact values of those rows, the same as of the matrix that
/// was repacked.
void ExpandRows(const PanelMatrix& w, int64_t row_begin, int64_t row_end, float* out,
                Isa isa = BestIsa());

/// The same, then rounded to bf16 (nearest even).
void ExpandRowsBf16(const PanelMatrix& w, int64_t row_begin, int64_t row_end, uint16_t* out,
                    Isa isa = BestIsa());

/// out [panel_end - panel_begin][ceil(cols / 2)][16 rows][2 columns] = the exact values rounded to
/// bf16 (nearest even), in pairs of consecutive columns; zeros beyond the last row and column. For
/// matrix products by dot products of bf16 pairs.
void ExpandPanelsBf16(const PanelMatrix& w, int64_t panel_begin, int64_t panel_end, uint16_t* out,
                      Isa isa = BestIsa());

}  // namespace ripplekv
