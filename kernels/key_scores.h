#pragma once

#include <cstdint>

#include "kernels/isa.h"
#include "kernels/kv_type.h"
#include "kernels/pooling.h"
#include "kernels/thread_pool.h"

namespace ripplekv {

inline constexpr int kKeyScoresMaxHeadDim = 512;
inline constexpr int kKeyScoresMaxKernel = 255;
inline constexpr int64_t kKeyScoresMaxRows = int64_t{1} << 24;

/// What a key's attention, summed over the queries, is divided by.
enum class KeyScoreDivisor : uint8_t {
  kOne,    // the plain sum: H2O's accumulated attention (arXiv 2306.14048)
  kCount,  // how many of the queries see the key: SnapKV's mean over its window (arXiv 2404.14469),
           // and what kvpress' ObservedAttention makes of H2O. A key that none sees scores 0
};

/// How much attention the keys of a sequence get from some of its queries: the last few (SnapKV's
/// window), the last few hundred or a strided sample (H2O).
struct KeyScoresArgs {
  KvType type = KvType::kF32;  // of q and k
  int heads = 0;               // query heads, a multiple of kv_heads
  int kv_heads = 0;
  int head_dim = 0;
  int64_t rows = 0;  // of k; at most kKeyScoresMaxRows
  int queries = 0;   // n >= 1
  /// [n], ascending, in [0, rows): query i sees keys 0 ... positions[i], its own among them. They
  /// are rows of k, so over a cache its rows count too.
  const int32_t* positions = nullptr;
  const void* q = nullptr;  // [n, heads, d]: the queries in that order, rotated, not scaled
  const void* k = nullptr;  // row r of KV head h at (h * kv_head_stride + r * d) elements, rotated
  int64_t kv_head_stride = 0;
  int64_t end = 0;  // in [1, rows]: keys 0 ... end - 1 get a score. Those behind it (that are kept
                    // whatever they score) take part in the softmax only, and in no pooling
  KeyScoreDivisor divisor = KeyScoreDivisor::kCount;
  Pooling pooling = Pooling::kNone;
  int kernel = 7;              // odd, at most kKeyScoresMaxKernel; ignored without pooling
  float* scores = nullptr;     // [heads, end]
  float* workspace = nullptr;  // [KeyScoresWorkspaceFloats()]
};

/// Of `args` (its pointers are not read) on so many threads.
int64_t KeyScoresWorkspaceFloats(const KeyScoresArgs& args, int threads);

/// For each query head, in fp32 (bf16 numbers multiply exactly, also by kV4Dot's dot products of
/// pairs, which count subnormal ones as 0):
///   A[i, u] = softmax over u <= positions[i] of q_i k_u / sqrt(d);  a[u] = sum over i of A[i, u],
///   divided as `divisor` says;  scores = a pooled along u < end with stride 1 and kernel / 2
///   padding: max over what exists, or the mean with zeros counted (torch's avg_pool1d).
/// Sums are taken in one fixed order: the bits do not depend on the threads. Work and workspace are
/// split over the pool (null: one thread).
void KeyScores(const KeyScoresArgs& args, ThreadPool* pool, Isa isa = BestIsa());

/// out [kv_heads, positions] = mean over each KV head's group of rows of scores [heads, positions].
/// out may be scores only where heads == kv_heads.
void MeanOverGroup(const float* scores, int heads, int kv_heads, int64_t positions, float* out);

}  // namespace ripplekv
