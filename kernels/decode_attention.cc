#include "kernels/decode_attention.h"

#include "kernels/hadamard.h"

namespace ripplekv {
namespace {

// Below so many pairs of row and query head, a few microseconds' work, others are not woken.
constexpr int64_t kAloneRowHeads = 1024;
constexpr int64_t kManySplits = 12;

/// What the partial results of all items take.
size_t PartialFloats(const DecodeAttentionArgs& args) {
  const int group = args.heads / args.layout.kv_heads;
  int per_query = args.layout.head_dim + 2;
  for (int s = 0; s < args.sequences; ++s) {
    if (args.sequence[s].mass != nullptr) {
      per_query += kDecodeAttentionSplitRows;  // probabilities, behind the sums of all items
      break;
    }
  }
  return static_cast<size_t>(DecodeAttentionItems(args)) * static_cast<size_t>(group) *
         static_cast<size_t>(per_query);
}

}  // namespace

int64_t DecodeAttentionItems(const DecodeAttentionArgs& args) {
  int64_t splits = 0;
  for (int s = 0; s < args.sequences; ++s) {
    splits += (args.sequence[s].rows + kDecodeAttentionSplitRows - 1) / kDecodeAttentionSplitRows;
  }
  return splits * args.layout.kv_heads;
}

size_t DecodeAttentionWorkspaceFloats(const DecodeAttentionArgs& args) {
  const size_t queries = static_cast<size_t>(args.sequences) * static_cast<size_t>(args.heads) *
                         static_cast<size_t>(args.layout.head_dim);
  return PartialFloats(args) + (args.layout.k.type == kTransformedKeys ? queries : 0);
}

void DecodeAttention(const DecodeAttentionArgs& given, ThreadPool* pool, Isa isa) {
  DecodeAttentionArgs args = given;
  const int64_t items = DecodeAttentionItems(args);
  const int64_t heads = static_cast<int64_t>(args.sequences) * args.heads;
  if (args.layout.k.type == kTransformedKeys) {
    // Once a query, not once a split.
    const int d = args.layout.head_dim;
    float* const transformed = args.workspace + PartialFloats(args);
    for (int64_t i = 0; i < heads; ++i) HadamardRow(args.q + i * d, d, transformed + i * d);
    args.q = transformed;
  }
  int64_t rows = 0;
  for (int s = 0; s < args.sequences; ++s) rows += args.sequence[s].rows;
  if (pool == nullptr || rows * args.heads < kAloneRowHeads) {
    DecodeAttentionPartial(args, 0, items, isa);
    DecodeAttentionMerge(args, 0, heads, isa);
    return;
  }
  // All heads of a split together read memory in order; few splits are dealt out by heads.
  const int64_t together = items >= kManySplits * args.layout.kv_heads ? args.layout.kv_heads : 1;
  pool->ParallelFor(items, together, [&](int64_t begin, int64_t end) {
    DecodeAttentionPartial(args, begin, end, isa);
  });
  // A merge reads a few hundred floats a split: worth a region only where rows are many.
  const int64_t grain = items > 64 ? args.heads : heads;
  pool->ParallelFor(heads, grain, [&](int64_t begin, int64_t end) {
    DecodeAttentionMerge(args, begin, end, isa);
  });
}

}  // namespace ripplekv
