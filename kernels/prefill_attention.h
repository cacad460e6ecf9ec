#pragma once

#include <cstdint>

#include "kernels/isa.h"
#include "kernels/thread_pool.h"

namespace ripplekv {

inline constexpr int kPrefillAttentionMaxHeadDim = 256;
/// Rows (query, head of the group) that are at work together: a tile; at most so many an item.
inline constexpr int kPrefillAttentionTileRows = 48;
inline constexpr int kPrefillAttentionMaxTiles = 4;

/// A chunk of consecutive new tokens attends to the rows before it (all visible) and to its own
/// (causal). All numbers are bf16.
struct PrefillAttentionArgs {
  int heads = 0;  // query heads, a multiple of kv_heads
  int kv_heads = 0;
  int head_dim = 0;
  int queries = 0;
  int64_t cached = 0;           // query i sees rows [0, cached + i]; cached + queries < 2^31
  const uint16_t* q = nullptr;  // [queries, heads, d], rotated, not scaled
  const uint16_t* k = nullptr;  // row r of KV head h at h * kv_head_stride + r * d
  const uint16_t* v = nullptr;
  int64_t kv_head_stride = 0;  // elements
  uint16_t* out = nullptr;     // [queries, heads, d]
};

/// Whether the kernel has a build for the width: a multiple of 32, at most
/// kPrefillAttentionMaxHeadDim. The functions below may be called only then.
bool PrefillAttentionSupported(int head_dim);

/// out = softmax(q k^T / sqrt(d)) v. Scores, sums and outputs are accumulated in fp32; scores may
/// differ by up to 10^6; keys and values must be finite. By instruction set:
/// - kV4Dot multiplies pairs of bf16, in blocks of 256 rows. What its softmax subtracts is not a
///   running maximum: the largest of a query's first eight scores serves, and a block in which a
///   query's sum passes 2^80 is taken again with a reference that no score passes. Probabilities
///   are bf16 with an error of 0.2 % (root mean square), and the sum they are divided by is that of
///   the rounded ones;
/// - the others multiply in fp32, probabilities too, with a running maximum over blocks of 48 rows.
///
/// A query's bits depend on its own numbers and on the rows it sees, and on nothing else: not on
/// where the chunk begins, the other queries, the ranges, the threads or where the arrays lie.
///
/// Items are all (KV head, up to 192 consecutive (query, head of the group)).
int64_t PrefillAttentionItems(const PrefillAttentionArgs& args);
void PrefillAttentionRange(const PrefillAttentionArgs& args, int64_t item_begin, int64_t item_end,
                           Isa isa = BestIsa());
/// All items, split over the pool (null: on the calling thread).
void PrefillAttention(const PrefillAttentionArgs& args, ThreadPool* pool, Isa isa = BestIsa());

}  // namespace ripplekv
