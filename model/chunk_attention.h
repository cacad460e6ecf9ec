#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/kv_type.h"
#include "kernels/thread_pool.h"

namespace ripplekv {

/// Attention of `queries` consecutive new tokens over rows that lie contiguously per KV head: the
/// `cached` rows before them (all visible) and their own rows (causal). Serves prefill (cached =
/// the chunk's first token) and every extend over a cache (the probe's windows, scoring).
struct ChunkAttentionArgs {
  KvType type;  // of q, k, v and out
  int heads, kv_heads, head_dim;
  int queries;     // 1 ... Decoder::kChunkTokens
  int64_t cached;  // rows before the first query's own; query i sees rows [0, cached + i]
  const void* q;   // [queries, heads, d], rotated, not scaled
  const void* k;   // row r of KV head h at (h * kv_head_stride + r * d) elements
  const void* v;
  int64_t kv_head_stride;      // elements; at least (cached + queries) * d
  void* out;                   // [queries, heads, d]
  ThreadPool* pool = nullptr;  // splits the kernel's work; null: on the calling thread
};

/// out = softmax(q k^T / sqrt(d)) v with fp32 accumulation: in bf16 by kernels/prefill_attention.h
/// where that is supported, else by LibTorch. The bits do not depend on the thread count.
absl::Status ChunkAttention(const ChunkAttentionArgs& args);

}  // namespace ripplekv
