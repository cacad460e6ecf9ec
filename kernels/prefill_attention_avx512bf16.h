// The build of prefill attention for AVX512-BF16, which x86-64-v4 does not include.
#pragma once

#include <cstdint>

#include "kernels/prefill_attention.h"

namespace ripplekv {

/// Rows that share the packing of their values: (query, head of the group), in the kernel's tiles.
inline constexpr int kPrefillAttentionTileRows = 48;
inline constexpr int kPrefillAttentionMaxTiles = 4;

namespace isa_v4dot {
/// `item_rows` is a number of tiles, at most kPrefillAttentionMaxTiles.
void PrefillAttentionRange(const PrefillAttentionArgs& args, int item_rows, int64_t item_begin,
                           int64_t item_end);
}  // namespace isa_v4dot

}  // namespace ripplekv
