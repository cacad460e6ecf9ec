// The items of prefill attention. Per instruction set, like simd.h.
#pragma once

#include "kernels/prefill_attention.h"
#include "kernels/simd.h"

namespace ripplekv::RIPPLEKV_ISA {

/// The rows of one KV head: row r of its group is (query r / group, head r % group).
struct Head {
  const PrefillAttentionArgs& args;
  int kv_head;
  int group;
  const uint16_t* k;
  const uint16_t* v;
};

/// Where row `row` of a KV head lies in q and out.
RIPPLEKV_INLINE int64_t RowOffset(const Head& head, int64_t row) {
  const int64_t query_head = head.kv_head * head.group + row % head.group;
  return (row / head.group * head.args.heads + query_head) * head.args.head_dim;
}

/// f(head, first row, rows) for items [item_begin, item_end).
template <typename F>
RIPPLEKV_INLINE void ForItems(const PrefillAttentionArgs& args, int item_rows, int64_t item_begin,
                              int64_t item_end, const F& f) {
  const int group = args.heads / args.kv_heads;
  const int64_t rows = static_cast<int64_t>(args.queries) * group;
  const int64_t per_head = (rows + item_rows - 1) / item_rows;
  for (int64_t item = item_begin; item < item_end; ++item) {
    // The later the rows, the more keys they see: the last ones, the first ones, the last but one,
    // ..., so that threads' shares are equally long.
    const int64_t kv_head = item % args.kv_heads;
    const int64_t turn = item / args.kv_heads;
    const int64_t first_row = (turn % 2 == 0 ? per_head - 1 - turn / 2 : turn / 2) * item_rows;
    const int64_t left = rows - first_row;
    const Head head = {args, static_cast<int>(kv_head), group,
                       args.k + kv_head * args.kv_head_stride,
                       args.v + kv_head * args.kv_head_stride};
    f(head, first_row, left < item_rows ? static_cast<int>(left) : item_rows);
  }
}

}  // namespace ripplekv::RIPPLEKV_ISA
