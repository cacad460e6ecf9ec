#include <algorithm>
#include <cstring>

#include "kernels/panel_matrix.h"

namespace ripplekv {
namespace {

/// Lane `lane` of a panel: `bytes` bytes of a row as units of kUnit bytes, unit u to vector u.
template <int kUnit>
void ScatterRow(const std::byte* row, int64_t units, int lane, std::byte* out) {
  for (int64_t u = 0; u < units; ++u) {
    std::memcpy(out + (u * kPanelRows + lane) * kUnit, row + u * kUnit, kUnit);
  }
}

void RepackPlain(const PackedMatrix& w, const std::byte* row, int lane, std::byte* out) {
  switch (w.type) {
    case TensorType::kF32:
      return ScatterRow<4>(row, w.cols, lane, out);
    case TensorType::kF16:
      return ScatterRow<2>(row, w.cols, lane, out);
    default:  // bf16 by pairs of columns
      ScatterRow<4>(row, w.cols / 2, lane, out);
      if (w.cols % 2 != 0) {
        const int64_t pair = w.cols / 2;
        std::memcpy(out + (pair * kPanelRows + lane) * 4, row + pair * 4, 2);
      }
  }
}

/// The blocks of one group of a panel's rows.
template <int kScaleBytes, int kQuantBytes>
void RepackGroup(const std::byte* block, int64_t row_bytes, int rows, std::byte* quants,
                 std::byte* scales) {
  for (int r = 0; r < rows; ++r, block += row_bytes) {
    ScatterRow<2>(block, kScaleBytes / 2, r, scales);
    ScatterRow<4>(block + kScaleBytes, kQuantBytes / 4, r, quants);
  }
}

}  // namespace

void RepackPanels(const PackedMatrix& w, int64_t panel_begin, int64_t panel_end, std::byte* out) {
  const int64_t bytes = panel_bytes(w.type, w.cols);
  const int64_t groups = (w.cols + kPanelGroup - 1) / kPanelGroup;
  for (int64_t p = panel_begin; p < panel_end; ++p) {
    const int rows = static_cast<int>(std::min<int64_t>(kPanelRows, w.rows - p * kPanelRows));
    const std::byte* row = w.data + p * kPanelRows * w.row_bytes;
    std::byte* panel = out + p * bytes;
    // Padding: rows that are missing, columns of plain types, the odd scales' half line.
    if (rows < kPanelRows || w.cols % (2 * kPanelGroup) != 0) {
      std::memset(panel, 0, static_cast<size_t>(bytes));
    }
    if (block_elements(w.type) == 1) {
      for (int r = 0; r < rows; ++r) RepackPlain(w, row + r * w.row_bytes, r, panel);
      continue;
    }
    std::byte* scales = panel + groups * panel_group_bytes(w.type);
    for (int64_t g = 0; g < groups; ++g) {
      const std::byte* block = row + g * block_bytes(w.type);
      std::byte* quants = panel + g * panel_group_bytes(w.type);
      std::byte* group_scales = scales + g * panel_scale_bytes(w.type);
      if (w.type == TensorType::kQ8_0) {
        RepackGroup<2, 32>(block, w.row_bytes, rows, quants, group_scales);
      } else if (w.type == TensorType::kQ4_0) {
        RepackGroup<2, 16>(block, w.row_bytes, rows, quants, group_scales);
      } else {
        RepackGroup<4, 16>(block, w.row_bytes, rows, quants, group_scales);
      }
    }
  }
}

}  // namespace ripplekv
