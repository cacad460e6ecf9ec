#pragma once

#include <cstddef>

#include "kernels/isa.h"
#include "kernels/kv_type.h"

namespace ripplekv {

/// Rounds one row of one KV head, x [head_dim], to a stored type: KvRowBytes at `row`, KvParamBytes
/// at `params`. head_dim is at most kDecodeAttentionMaxHeadDim. Channels behind it, up to a
/// multiple of 32, are stored as if they did not count.
///
/// kInt8: the error is at most half the scale. kInt4: the minimum is rounded down to bf16, the
/// scale, (maximum - minimum) / 15, up; the error is at most half the scale. Where the largest
/// magnitude, or the range of a group, is below 2^-100, it reads as 0, or as the minimum. A row
/// (kInt8) or group (kInt4) with a value that is not finite, or whose range is not, reads as NaN
/// throughout.
/// Keys in kInt4 are transformed first (HadamardRow): this holds for what comes of that, and a
/// number that is not finite spoils its whole block of 64 (or 32) channels.
///
/// The same bits for every instruction set.
void EncodeKvRow(KvRole role, KvType type, const float* x, int head_dim, std::byte* row,
                 std::byte* params, Isa isa = BestIsa());

/// The values that a stored row stands for, transformed back to fp32 rounding: what attention
/// reads.
void DecodeKvRow(KvRole role, KvType type, const std::byte* row, const std::byte* params,
                 int head_dim, float* x);

}  // namespace ripplekv
