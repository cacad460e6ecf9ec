#include "kernels/prefill_attention.h"

#include "kernels/isa_functions.h"

namespace ripplekv {
namespace {

/// Fewer where there would be too few items for threads to share.
int ItemRows(const PrefillAttentionArgs& args) {
  constexpr int64_t kItems = 12;
  const int64_t rows = static_cast<int64_t>(args.queries) * (args.heads / args.kv_heads);
  const int64_t tiles =
      (rows + kPrefillAttentionTileRows - 1) / kPrefillAttentionTileRows * args.kv_heads;
  return kPrefillAttentionTileRows * (tiles >= kPrefillAttentionMaxTiles * kItems
                                          ? kPrefillAttentionMaxTiles
                                      : tiles >= 2 * kItems ? 2
                                                            : 1);
}

}  // namespace

bool PrefillAttentionSupported(int head_dim) {
  return head_dim > 0 && head_dim % 32 == 0 && head_dim <= kPrefillAttentionMaxHeadDim;
}

int64_t PrefillAttentionItems(const PrefillAttentionArgs& args) {
  const int64_t rows = static_cast<int64_t>(args.queries) * (args.heads / args.kv_heads);
  const int item_rows = ItemRows(args);
  return args.kv_heads * ((rows + item_rows - 1) / item_rows);
}

void PrefillAttentionRange(const PrefillAttentionArgs& args, int64_t item_begin, int64_t item_end,
                           Isa isa) {
  ForIsa(isa, isa_base::PrefillAttentionRange, isa_v3::PrefillAttentionRange,
         isa_v4::PrefillAttentionRange,
         isa_v4dot::PrefillAttentionRange)(args, ItemRows(args), item_begin, item_end);
}

void PrefillAttention(const PrefillAttentionArgs& args, ThreadPool* pool, Isa isa) {
  const int64_t items = PrefillAttentionItems(args);
  if (pool == nullptr) {
    PrefillAttentionRange(args, 0, items, isa);
    return;
  }
  pool->ParallelFor(
      items, 1, [&](int64_t begin, int64_t end) { PrefillAttentionRange(args, begin, end, isa); });
}

}  // namespace ripplekv
