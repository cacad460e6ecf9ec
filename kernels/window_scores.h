#pragma once

#include <cstdint>

#include "kernels/isa.h"
#include "kernels/kv_type.h"
#include "kernels/pooling.h"

namespace ripplekv {

inline constexpr int kWindowScoresMaxHeadDim = 512;
inline constexpr int kWindowScoresMaxKernel = 255;

/// SnapKV's scores (arXiv 2404.14469): how much the last `window` tokens attend to each earlier
/// position.
struct WindowScoresArgs {
  KvType type = KvType::kF32;  // of q and k
  int heads = 0;               // query heads, a multiple of kv_heads
  int kv_heads = 0;
  int head_dim = 0;
  int window = 0;    // w >= 1
  int64_t rows = 0;  // T > w, the window's own rows included
  const void* q =
      nullptr;  // [w, heads, d]: queries of positions T - w ... T - 1, rotated, not scaled
  const void* k = nullptr;  // row r of KV head h at (h * kv_head_stride + r * d) elements
  int64_t kv_head_stride = 0;
  Pooling pooling = Pooling::kMax;
  int kernel = 7;           // odd, at most kWindowScoresMaxKernel; ignored without pooling
  float* scores = nullptr;  // [heads, T - w]
};

/// For each query head of [head_begin, head_end), in fp32 (bf16 numbers multiply exactly, also by
/// kV4Dot's dot products of pairs, which count subnormal ones as 0):
///   A = softmax(q k^T / sqrt(d)), causal inside the window;  a[u] = mean of A[:, u] over the w
///   queries, u < T - w; scores = a pooled along u with stride 1 and kernel / 2 padding: max over
///   what exists, or the mean with zeros counted (torch's avg_pool1d).
void WindowScores(const WindowScoresArgs& args, int head_begin, int head_end, Isa isa = BestIsa());

/// out [kv_heads, positions] = mean over each KV head's group of rows of scores [heads, positions].
/// out may be scores only where heads == kv_heads.
void MeanOverGroup(const float* scores, int heads, int kv_heads, int64_t positions, float* out);

}  // namespace ripplekv
