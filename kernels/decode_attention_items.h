// The items of a call, (sequence, split, KV head), in their order. Per instruction set, like
// simd.h.
#pragma once

#include "kernels/decode_attention_block.h"

namespace ripplekv::RIPPLEKV_ISA {

RIPPLEKV_INLINE int64_t Splits(int64_t rows) {
  return (rows + kDecodeAttentionSplitRows - 1) / kDecodeAttentionSplitRows;
}

/// Walks over all items in order.
struct Items {
  const DecodeAttentionArgs& args;
  int sequence = 0;
  int64_t first = 0;  // item of the sequence
  int64_t index = 0;  // of all

  /// Goes to item i, not before the present one; false beyond the last.
  RIPPLEKV_INLINE bool Seek(int64_t i) {
    index = i;
    for (; sequence < args.sequences; ++sequence) {
      const int64_t items = Splits(args.sequence[sequence].rows) * args.layout.kv_heads;
      if (i < first + items) return true;
      first += items;
    }
    return false;
  }
  RIPPLEKV_INLINE int kv_head() const {
    return static_cast<int>((index - first) % args.layout.kv_heads);
  }
  /// The first rows of the item's split, `most` at most.
  RIPPLEKV_INLINE BlockRows rows(int most) const {
    const PagedSequence& s = args.sequence[sequence];
    const int64_t row = (index - first) / args.layout.kv_heads * kDecodeAttentionSplitRows;
    const int64_t left = s.rows - row;
    return {&args.layout, &s, row, static_cast<int>(left < most ? left : most)};
  }
};

}  // namespace ripplekv::RIPPLEKV_ISA
