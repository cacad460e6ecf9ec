#include "kernels/prefill_attention.h"

#include "kernels/isa.h"
#include "kernels/prefill_attention_avx512bf16.h"

namespace ripplekv {

bool PrefillAttentionSupported(int head_dim) {
  static const bool processor = IsaSupported(Isa::kV4Dot);
  return processor && head_dim > 0 && head_dim % 32 == 0 && head_dim <= kPrefillAttentionMaxHeadDim;
}

int64_t PrefillAttentionItems(const PrefillAttentionArgs& args) {
  const int64_t rows = static_cast<int64_t>(args.queries) * (args.heads / args.kv_heads);
  return args.kv_heads * ((rows + kPrefillAttentionItemRows - 1) / kPrefillAttentionItemRows);
}

void PrefillAttentionRange(const PrefillAttentionArgs& args, int64_t item_begin, int64_t item_end) {
  isa_v4dot::PrefillAttentionRange(args, item_begin, item_end);
}

void PrefillAttention(const PrefillAttentionArgs& args, ThreadPool* pool) {
  const int64_t items = PrefillAttentionItems(args);
  if (pool == nullptr) {
    PrefillAttentionRange(args, 0, items);
    return;
  }
  pool->ParallelFor(items, 1,
                    [&](int64_t begin, int64_t end) { PrefillAttentionRange(args, begin, end); });
}

}  // namespace ripplekv
