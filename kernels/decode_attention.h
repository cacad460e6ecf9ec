#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/isa.h"
#include "kernels/kv_page.h"
#include "kernels/thread_pool.h"

namespace ripplekv {

/// A sequence's cached rows of one layer.
struct PagedSequence {
  const std::byte* const* pages =
      nullptr;  // [ceil(rows / rows_per_page)], each aligned to 64 bytes
  int64_t rows = 0;

  /// Where not null: the attention mass of this step. For row mass_first_row + i of KV head h,
  /// mass[h * mass_stride + i] becomes the sum of the row's softmax probabilities over the query
  /// heads of its group.
  float* mass = nullptr;
  int64_t mass_stride = 0;
  int64_t mass_first_row = 0;  // [0, rows]
};

inline constexpr int kDecodeAttentionSplitRows = 256;
inline constexpr int kDecodeAttentionMaxHeadDim = 512;

/// One new token of each of several sequences attends to all rows of its own cache.
struct DecodeAttentionArgs {
  KvPageLayout layout;
  int heads = 0;  // query heads, a multiple of layout.kv_heads
  int sequences = 0;
  const PagedSequence* sequence = nullptr;  // [sequences]
  const float* q = nullptr;                 // [sequences, heads, d], rotated (RoPE), not scaled
  float* out = nullptr;                     // [sequences, heads, d]
  float* workspace = nullptr;               // [DecodeAttentionWorkspaceFloats(args)]
};

/// out = softmax(q k^T / sqrt(d)) v with fp32 sums and exponentials; zeros for a sequence without
/// rows. head_dim is at most kDecodeAttentionMaxHeadDim. Rows are taken in splits of 256 by row
/// number, merged in order, and every row's score in a fixed order of lanes: a sequence's bits, its
/// mass included, do not depend on the others, the ranges, the threads, where its pages lie or how
/// many rows they hold.
///
/// Isa::kV4Dot computes by dot products what is not stored in fp32. Scores: of bf16 keys with the
/// query to 2^-15, of integer keys with the query (transformed for kTransformedKeys) in steps of
/// its largest channel / 32512. Values: bf16 ones with their weights rounded to bf16 (2^-8 at
/// most), int8 ones with weights in steps of the largest of 32 rows / 65535, int4 ones in steps of
/// at most the largest / 16384; denormal bf16 numbers count as zeros. The others compute in fp32
/// throughout.
///
/// Items are all (sequence, split, KV head), the head fastest; rows of a split never cross to
/// another item. A range that holds all heads of its splits reads memory in the order of addresses.
int64_t DecodeAttentionItems(const DecodeAttentionArgs& args);
size_t DecodeAttentionWorkspaceFloats(const DecodeAttentionArgs& args);
/// First all items, then the merge of all (sequence, head): sequences * heads of them. The mass of
/// a KV head comes with the merge of its group's first query head. q is as the keys are stored:
/// through HadamardRow for kTransformedKeys.
void DecodeAttentionPartial(const DecodeAttentionArgs& args, int64_t item_begin, int64_t item_end,
                            Isa isa = BestIsa());
void DecodeAttentionMerge(const DecodeAttentionArgs& args, int64_t begin, int64_t end,
                          Isa isa = BestIsa());
/// Both, split over the pool (null: on the calling thread), for any type of keys.
void DecodeAttention(const DecodeAttentionArgs& args, ThreadPool* pool, Isa isa = BestIsa());

}  // namespace ripplekv
