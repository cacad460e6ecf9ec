#pragma once

#include <cstdint>

#include "kernels/kv_type.h"
#include "kernels/philox.h"

namespace ripplekv {

/// Noise on one layer's cached values (arXiv 2608.08684): v' = v + alpha ||v||_2 eps with eps ~
/// N(0, I_d), per KV head and row, where eta = alpha sqrt(d) is the strength relative to ||v||.
struct PerturbArgs {
  KvType type = KvType::kF32;
  int kv_heads = 0;
  int head_dim = 0;
  int64_t kv_head_stride =
      0;  // elements; row r of KV head h lies at h * kv_head_stride + r * d, in both
  const void* source = nullptr;
  void* destination = nullptr;  // may be the source
  int64_t first_row = 0;  // rows outside [first_row, last_row) are protected: copied unchanged
  int64_t last_row = 0;
  uint32_t first_position =
      0;          // logical position of row 0; the noise of row r is that of position + r
  float eta = 0;  // 0 copies the bits
  NoiseKey noise;
};

/// Rows [row_begin, row_end) of all KV heads. The norm and the sum are computed in double and
/// rounded once.
void PerturbValues(const PerturbArgs& args, int64_t row_begin, int64_t row_end);

}  // namespace ripplekv
