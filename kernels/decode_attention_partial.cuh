// What the kernels of decode_attention_cuda.cu share, and the one that reads the rows.
#pragma once

#include <cuda_runtime.h>

#include "kernels/decode_attention.h"
#include "kernels/hadamard.cuh"
#include "kernels/kv_load.cuh"

namespace ripplekv::cuda_attention {

inline constexpr int kSplit = kDecodeAttentionSplitRows;
inline constexpr int kThreads = 128;
inline constexpr int kWarp = 32;
inline constexpr int kWarps = kThreads / kWarp;
// Registers for so many blocks on a multiprocessor: with fewer of them the compiler spreads the
// loads out.
inline constexpr int kBlocksAtOnce = 4;
inline constexpr int kRowsAtOnce = 8;  // rows of which a thread has its part on the way
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

/// How a block's threads share rows of up to kHeadDim (64, 128, 256 or 512) channels.
template <int kHeadDim>
struct Sharing {
  static constexpr int kOctets = kHeadDim / kOctet;                 // of a row
  static constexpr int kLanes = kOctets < kWarp ? kOctets : kWarp;  // threads that share a row
  static constexpr int kPerLane = kOctets / kLanes;
  static constexpr int kTeams = kThreads / kLanes;  // of kLanes threads
  static constexpr int kTeamsOfWarp = kWarp / kLanes;

  /// First channel of the v-th octet of a thread.
  __device__ static int Channel(int v, int lane) { return (v * kLanes + lane) * kOctet; }
};

/// Where a row of the KV head lies.
struct alignas(16) Row {
  const std::byte* page;
  uint32_t index;  // kv_head * rows_per_page + row in the page
};

/// The keys or the values of the rows of a split.
struct Side {
  const Row* rows;
  int count;
  uint32_t offset, row_bytes, param_offset, param_bytes;
  int channels;  // that a row holds

  __device__ Side(const Row* rows_, int count_, const KvSide& side, int head_dim)
      : rows(rows_),
        count(count_),
        offset(static_cast<uint32_t>(side.offset)),
        row_bytes(static_cast<uint32_t>(side.row_bytes)),
        param_offset(static_cast<uint32_t>(side.param_offset)),
        param_bytes(static_cast<uint32_t>(side.param_bytes)),
        channels(side.param_bytes > 0 ? KvGroups(head_dim) * kKvGroup : head_dim) {}

  __device__ const std::byte* At(int row) const {
    return rows[row].page + offset + rows[row].index * row_bytes;
  }
  /// Of a row beyond the last one: the last one's.
  template <KvType type, bool kWhole>
  __device__ typename KvOctet<type>::Raw Load(int row, int first) const {
    const Row& at = rows[row < count ? row : count - 1];
    return KvOctet<type>::template Load<kWhole>(at.page + offset + at.index * row_bytes,
                                                at.page + param_offset + at.index * param_bytes,
                                                first, channels);
  }
};

/// scores[g][row] = q[g] . key; those beyond the last row are of no meaning.
template <KvType type, int kHeadDim, int kQueries, bool kWhole>
__device__ void Scores(const Side& keys,
                       const float (&q)[kQueries][Sharing<kHeadDim>::kPerLane][kOctet],
                       float (*scores)[kSplit]) {
  using Share = Sharing<kHeadDim>;
  constexpr int kLanes = Share::kLanes;
  const int warp = threadIdx.x / kWarp;
  const int team = threadIdx.x / kLanes;
  const int lane = threadIdx.x % kLanes;
  for (int first = 0; first < kSplit; first += Share::kTeams * kRowsAtOnce) {
    if (first + warp * Share::kTeamsOfWarp * kRowsAtOnce >= keys.count) break;  // the whole warp
    const int row = first + team * kRowsAtOnce;
    float dots[kQueries][kRowsAtOnce] = {};
#pragma unroll
    for (int v = 0; v < Share::kPerLane; ++v) {
      typename KvOctet<type>::Raw raw[kRowsAtOnce];
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        raw[i] = keys.template Load<type, kWhole>(row + i, Share::Channel(v, lane));
      }
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        float x[kOctet];
        KvOctet<type>::Unpack(raw[i], x);
#pragma unroll
        for (int g = 0; g < kQueries; ++g) {
#pragma unroll
          for (int e = 0; e < kOctet; ++e) dots[g][i] = fmaf(q[g][v][e], x[e], dots[g][i]);
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
}

/// partial[warp][g] = the warp's rows weighted by scores[g]: a team takes every kTeams-th row.
template <KvType type, int kHeadDim, int kQueries, bool kWhole>
__device__ void Values(const Side& values, const float (*scores)[kSplit],
                       float (*partial)[kQueries][kHeadDim]) {
  using Share = Sharing<kHeadDim>;
  constexpr int kLanes = Share::kLanes;
  const int warp = threadIdx.x / kWarp;
  const int team = threadIdx.x / kLanes;
  const int lane = threadIdx.x % kLanes;
#pragma unroll
  for (int v = 0; v < Share::kPerLane; ++v) {
    float sum[kQueries][kOctet] = {};
    for (int first = team; first < values.count; first += Share::kTeams * kRowsAtOnce) {
      typename KvOctet<type>::Raw raw[kRowsAtOnce];
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        const int row = first + i * Share::kTeams;
        raw[i] = values.template Load<type, kWhole>(row, Share::Channel(v, lane));
        // Nothing of a row that is not there, whatever the last one holds.
        if (row >= values.count) raw[i] = {};
      }
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        float x[kOctet];
        KvOctet<type>::Unpack(raw[i], x);
#pragma unroll
        for (int g = 0; g < kQueries; ++g) {
          const float weight = scores[g][first + i * Share::kTeams];
#pragma unroll
          for (int e = 0; e < kOctet; ++e) sum[g][e] = fmaf(weight, x[e], sum[g][e]);
        }
      }
    }
    // The teams of a warp, in order.
#pragma unroll
    for (int g = 0; g < kQueries; ++g) {
#pragma unroll
      for (int e = 0; e < kOctet; ++e) {
#pragma unroll
        for (int offset = kWarp / 2; offset >= kLanes; offset /= 2) {
          sum[g][e] += __shfl_xor_sync(kAllLanes, sum[g][e], offset);
        }
        if (threadIdx.x % kWarp < kLanes) {
          partial[warp][g][Share::Channel(v, lane) + e] = sum[g][e];
        }
      }
    }
  }
}

/// The queries [queries, d] as transformed keys meet them, in the block's shared memory at `to`.
__device__ inline const float* TransformQueries(const float* q, int queries, int d, float* to) {
  const int blocks = (d + kHadamardBlock - 1) / kHadamardBlock;
  const int lane = threadIdx.x % kWarp;
  for (int i = threadIdx.x / kWarp; i < queries * blocks; i += kWarps) {
    const int c = i % blocks * kHadamardBlock + lane;
    const int64_t row = int64_t{i / blocks} * d;
    HadamardPair pair{c < d ? q[row + c] : 0.0f, c + kWarp < d ? q[row + c + kWarp] : 0.0f};
    pair.Transform(d - (c - lane), lane);
    if (c < d) to[row + c] = pair.low;
    if (c + kWarp < d) to[row + c + kWarp] = pair.high;
  }
  __syncthreads();
  return to;
}

/// One split of one KV head for one chunk of its query heads. Block (split and chunk, KV head,
/// sequence).
template <int kHeadDim, int kQueries, bool kWhole>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    PartialKernel(DecodeAttentionArgs args, Grouping grouping, int64_t max_splits, bool mass) {
  using Share = Sharing<kHeadDim>;
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

  __shared__ Row rows[kSplit];
  __shared__ float scores[kQueries][kSplit];
  __shared__ float partial[kWarps][kQueries][kHeadDim];
  const Side keys(rows, count, layout.k, d);
  const Side values(rows, count, layout.v, d);

  // Where the rows lie, once a row; the values' way to the cache starts before the keys are read.
  for (int r = threadIdx.x; r < count; r += kThreads) {
    const auto row = static_cast<uint32_t>(first_row) + static_cast<uint32_t>(r);
    const auto per_page = static_cast<uint32_t>(layout.rows_per_page);
    rows[r] = {sequence.pages[row / per_page],
               static_cast<uint32_t>(kv_head) * per_page + row % per_page};
    PrefetchRow(values.At(r), values.row_bytes);
  }

  float q[kQueries][Share::kPerLane][kOctet];
  const float* q_of_chunk =
      args.q + (int64_t{blockIdx.z} * args.heads + kv_head * grouping.group + first_query) * d;
  if (layout.k.type == kTransformedKeys) {
    q_of_chunk = TransformQueries(q_of_chunk, queries, d, &partial[0][0][0]);
  }
#pragma unroll
  for (int g = 0; g < kQueries; ++g) {
#pragma unroll
    for (int v = 0; v < Share::kPerLane; ++v) {
#pragma unroll
      for (int e = 0; e < kOctet; ++e) {
        const int c = Share::Channel(v, threadIdx.x % Share::kLanes) + e;
        q[g][v][e] = g < queries && c < d ? q_of_chunk[g * d + c] * grouping.scale : 0.0f;
      }
    }
  }
  __syncthreads();

  switch (layout.k.type) {
    case KvType::kF32:
      Scores<KvType::kF32, kHeadDim, kQueries, kWhole>(keys, q, scores);
      break;
    case KvType::kBf16:
      Scores<KvType::kBf16, kHeadDim, kQueries, kWhole>(keys, q, scores);
      break;
    case KvType::kInt8:
      Scores<KvType::kInt8, kHeadDim, kQueries, kWhole>(keys, q, scores);
      break;
    case KvType::kInt4:
      Scores<KvType::kInt4, kHeadDim, kQueries, kWhole>(keys, q, scores);
      break;
  }
  __syncthreads();

  const Workspace workspace(args, max_splits);
  const int64_t query = workspace.Query(blockIdx.z, layout.kv_heads, kv_head, split) + first_query;
  for (int g = threadIdx.x / kWarp; g < queries; g += kWarps) {
    const float2 sums = SoftmaxOfWarp(scores[g], count, threadIdx.x % kWarp);
    if (threadIdx.x % kWarp == 0) {
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

  switch (layout.v.type) {
    case KvType::kF32:
      Values<KvType::kF32, kHeadDim, kQueries, kWhole>(values, scores, partial);
      break;
    case KvType::kBf16:
      Values<KvType::kBf16, kHeadDim, kQueries, kWhole>(values, scores, partial);
      break;
    case KvType::kInt8:
      Values<KvType::kInt8, kHeadDim, kQueries, kWhole>(values, scores, partial);
      break;
    case KvType::kInt4:
      Values<KvType::kInt4, kHeadDim, kQueries, kWhole>(values, scores, partial);
      break;
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
