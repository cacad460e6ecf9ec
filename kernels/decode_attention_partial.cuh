// What the kernels of decode_attention_cuda.cu share, and the one that reads the rows.
#pragma once

#include <cuda_runtime.h>

#include "kernels/decode_attention.h"
#include "kernels/kv_load.cuh"

namespace ripplekv::cuda_attention {

inline constexpr int kSplit = kDecodeAttentionSplitRows;
inline constexpr int kThreads = 128;
inline constexpr int kWarp = 32;
inline constexpr int kWarps = kThreads / kWarp;
// Registers for so many blocks on a multiprocessor: with fewer of them the compiler spreads the
// loads out.
inline constexpr int kBlocksAtOnce = 4;
inline constexpr int kRowsAtOnce = 8;  // loads of 16 bytes that a thread has on their way
inline constexpr unsigned kAllLanes = 0xffffffffu;

/// How the query heads of a KV head are dealt out, the same for all: `chunks` blocks of up to
/// `queries` heads each read the same rows, one after the other from memory and from the L2 cache.
struct Grouping {
  int group;
  int queries;
  int chunks;
  float scale;  // of the scores
};

/// The workspace: for each item (sequence, KV head, split) and query head of the group the weighted
/// values [d], then, for all of them, maximum and sum [2], then the exponentials [kSplit]. Items
/// are numbered as if every sequence had max_splits.
struct Workspace {
  float* values;
  float* sums;
  float* weights;
  int64_t max_splits;
  int group;

  __host__ __device__ Workspace(const DecodeAttentionArgs& args, int64_t splits)
      : max_splits(splits), group(args.heads / args.layout.kv_heads) {
    const int64_t queries = int64_t{args.sequences} * args.heads * splits;
    values = args.workspace;
    sums = values + queries * args.layout.head_dim;
    weights = sums + queries * 2;
  }
  /// Index of the first query head of an item.
  __host__ __device__ int64_t Query(int64_t sequence, int kv_heads, int kv_head,
                                    int64_t split) const {
    return ((sequence * kv_heads + kv_head) * max_splits + split) * group;
  }
};

/// Each of 8 numbers summed over the kLanes (8, 16 or 32) threads that share a row: the sum of
/// number lane / (kLanes / 8). Halving what is sent takes 7 exchanges where 8 sums take 24.
template <int kLanes>
__device__ float SumEight(float (&x)[8], int lane) {
#pragma unroll
  for (int half = 4; half >= 1; half /= 2) {
    const int offset = kLanes / 8 * half;
    const bool upper = (lane & offset) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float sent = upper ? x[i] : x[i + half];
      const float kept = upper ? x[i + half] : x[i];
      x[i] = kept + __shfl_xor_sync(kAllLanes, sent, offset);
    }
  }
  float sum = x[0];
#pragma unroll
  for (int offset = kLanes / 16; offset >= 1; offset /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, offset);
  }
  return sum;
}

/// Turns a query's scores into exponentials, those beyond `count` into zeros; one warp. Returns
/// maximum and sum.
__device__ inline float2 SoftmaxOfWarp(float* scores, int count, int lane) {
  constexpr int kPerLane = kSplit / kWarp;
  float x[kPerLane];
  float max = -INFINITY;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int r = lane + i * kWarp;
    x[i] = r < count ? scores[r] : -INFINITY;
    max = fmaxf(max, x[i]);
  }
#pragma unroll
  for (int offset = kWarp / 2; offset >= 1; offset /= 2) {
    max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, offset));
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int r = lane + i * kWarp;
    const float e = r < count ? expf(x[i] - max) : 0.0f;
    scores[r] = e;
    sum += e;
  }
#pragma unroll
  for (int offset = kWarp / 2; offset >= 1; offset /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, offset);
  }
  return {max, sum};
}

/// One split of one KV head for one chunk of its query heads. Block (split and chunk, KV head,
/// sequence). kHeadDim: head_dim rounded up to 64, 128, 256 or 512.
template <typename T, int kHeadDim, int kQueries, bool kWhole>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    PartialKernel(DecodeAttentionArgs args, Grouping grouping, int64_t max_splits, bool mass) {
  constexpr int kElements = KvVector<T>::kElements;
  constexpr int kVectors = kHeadDim / kElements;               // of a row
  constexpr int kLanes = kVectors < kWarp ? kVectors : kWarp;  // threads that share a row
  constexpr int kPerLane = kVectors / kLanes;
  constexpr int kTeams = kThreads / kLanes;  // of kLanes threads

  const int64_t split = blockIdx.x / grouping.chunks;
  const int chunk = blockIdx.x % grouping.chunks;
  const PagedSequence sequence = args.sequence[blockIdx.z];
  const int64_t first_row = split * kSplit;
  if (first_row >= sequence.rows) return;
  const int count =
      static_cast<int>(sequence.rows - first_row < kSplit ? sequence.rows - first_row : kSplit);
  const KvPageLayout& layout = args.layout;
  const int d = layout.head_dim;
  const int kv_head = blockIdx.y;
  const int first_query = chunk * grouping.queries;  // of the group
  const int queries = grouping.group - first_query < kQueries ? grouping.group - first_query
                                                              : kQueries;  // the others are zeros
  const int warp = threadIdx.x / kWarp;
  const int warp_lane = threadIdx.x % kWarp;
  const int team = threadIdx.x / kLanes;
  const int lane = threadIdx.x % kLanes;

  __shared__ const std::byte* keys[kSplit];
  __shared__ float scores[kQueries][kSplit];
  __shared__ float partial[kWarps][kQueries][kHeadDim];

  // Where the rows lie, once a row; the values' way to the cache starts before the keys are read.
  const int64_t to_values =
      static_cast<int64_t>(layout.v.offset) - static_cast<int64_t>(layout.k.offset);
  for (int r = threadIdx.x; r < count; r += kThreads) {
    const auto row = static_cast<uint32_t>(first_row) + static_cast<uint32_t>(r);
    const auto per_page = static_cast<uint32_t>(layout.rows_per_page);
    keys[r] = sequence.pages[row / per_page] +
              layout.KeyOffset(kv_head, static_cast<int>(row % per_page));
    PrefetchRow(keys[r] + to_values, d * static_cast<int>(sizeof(T)));
  }

  float q[kQueries][kPerLane][kElements];
  const float* q_of_chunk =
      args.q + (int64_t{blockIdx.z} * args.heads + kv_head * grouping.group + first_query) * d;
#pragma unroll
  for (int g = 0; g < kQueries; ++g) {
#pragma unroll
    for (int v = 0; v < kPerLane; ++v) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        const int c = (v * kLanes + lane) * kElements + e;
        q[g][v][e] = g < queries && c < d ? q_of_chunk[g * d + c] * grouping.scale : 0.0f;
      }
    }
  }
  __syncthreads();

  // Scores. Rows beyond the last one read that one again and are not kept.
  for (int first = 0; first < kSplit; first += kTeams * kRowsAtOnce) {
    if (first + warp * (kWarp / kLanes) * kRowsAtOnce >= count) break;  // for the whole warp
    const int row = first + team * kRowsAtOnce;
    float dots[kQueries][kRowsAtOnce] = {};
#pragma unroll
    for (int v = 0; v < kPerLane; ++v) {
      uint4 raw[kRowsAtOnce];
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        raw[i] = LoadKv<T, kWhole>(keys[row + i < count ? row + i : count - 1],
                                   (v * kLanes + lane) * kElements, d);
      }
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        float x[kElements];
        KvVector<T>::Unpack(raw[i], x);
#pragma unroll
        for (int g = 0; g < kQueries; ++g) {
#pragma unroll
          for (int e = 0; e < kElements; ++e) dots[g][i] = fmaf(q[g][v][e], x[e], dots[g][i]);
        }
      }
    }
#pragma unroll
    for (int g = 0; g < kQueries; ++g) {
      const float sum = SumEight<kLanes>(dots[g], lane);
      if (lane % (kLanes / kRowsAtOnce) == 0) {
        scores[g][row + lane / (kLanes / kRowsAtOnce)] = sum;
      }
    }
  }
  __syncthreads();

  const Workspace workspace(args, max_splits);
  const int64_t query = workspace.Query(blockIdx.z, layout.kv_heads, kv_head, split) + first_query;
  for (int g = warp; g < queries; g += kWarps) {
    const float2 sums = SoftmaxOfWarp(scores[g], count, warp_lane);
    if (warp_lane == 0) {
      workspace.sums[(query + g) * 2] = sums.x;
      workspace.sums[(query + g) * 2 + 1] = sums.y;
    }
  }
  __syncthreads();
  if (mass && sequence.mass != nullptr && first_row + count > sequence.mass_first_row) {
    for (int i = threadIdx.x; i < queries * kSplit; i += kThreads) {
      if (i % kSplit < count) {
        workspace.weights[query * kSplit + i] = scores[i / kSplit][i % kSplit];
      }
    }
  }

  // Weighted values: a team takes every kTeams-th row.
#pragma unroll
  for (int v = 0; v < kPerLane; ++v) {
    float sum[kQueries][kElements] = {};
    for (int first = team; first < count; first += kTeams * kRowsAtOnce) {
      uint4 raw[kRowsAtOnce];
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        const int row = first + i * kTeams;
        raw[i] = LoadKv<T, kWhole>(keys[row < count ? row : count - 1] + to_values,
                                   (v * kLanes + lane) * kElements, d);
        // Nothing of a row that is not there, whatever the last one holds.
        if (row >= count) raw[i] = uint4{0, 0, 0, 0};
      }
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        const int row = first + i * kTeams;
        float x[kElements];
        KvVector<T>::Unpack(raw[i], x);
#pragma unroll
        for (int g = 0; g < kQueries; ++g) {
          const float weight = scores[g][row];  // of no meaning where g >= queries
#pragma unroll
          for (int e = 0; e < kElements; ++e) sum[g][e] = fmaf(weight, x[e], sum[g][e]);
        }
      }
    }
    // Teams of a warp, then warps, in order.
#pragma unroll
    for (int g = 0; g < kQueries; ++g) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
#pragma unroll
        for (int offset = kWarp / 2; offset >= kLanes; offset /= 2) {
          sum[g][e] += __shfl_xor_sync(kAllLanes, sum[g][e], offset);
        }
        if (warp_lane < kLanes) {
          partial[warp][g][(v * kLanes + lane) * kElements + e] = sum[g][e];
        }
      }
    }
  }
  __syncthreads();
  for (int g = 0; g < queries; ++g) {
    for (int c = threadIdx.x; c < d; c += kThreads) {
      float sum = partial[0][g][c];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) sum += partial[w][g][c];
      workspace.values[(query + g) * d + c] = sum;
    }
  }
}

}  // namespace ripplekv::cuda_attention
