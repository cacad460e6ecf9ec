#include <cuda_runtime.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/cuda_launch.cuh"
#include "kernels/decode_attention_cuda.h"
#include "kernels/decode_attention_partial.cuh"

namespace ripplekv {
namespace {

using namespace cuda_attention;  // NOLINT

constexpr int kMergeThreads = 64;
constexpr int kMaxGroup = kSplit;  // a thread of MassKernel for each query head

/// What brings the sums of a query head's splits from their own maxima to the common one.
struct Scales {
  const float* sums;  // maximum and sum of split 0
  int64_t step;       // to the next split's
  int64_t splits;

  __device__ float Highest() const {
    float max = -INFINITY;
    for (int64_t i = 0; i < splits; ++i) max = fmaxf(max, sums[i * step]);
    return max;
  }
  __device__ float Of(int64_t split, float highest) const {
    return expf(sums[split * step] - highest);
  }
  __device__ float Sum(float highest) const {
    float sum = 0;
    for (int64_t i = 0; i < splits; ++i) sum = fmaf(Of(i, highest), sums[i * step + 1], sum);
    return sum;
  }
};

__device__ int64_t SplitsOf(int64_t rows) { return (rows + kSplit - 1) / kSplit; }

/// Block (query head, sequence).
__global__ void __launch_bounds__(kMergeThreads)
    MergeKernel(DecodeAttentionArgs args, int64_t max_splits) {
  const int head = blockIdx.x;
  const int d = args.layout.head_dim;
  const Workspace workspace(args, max_splits);
  const int64_t query =
      workspace.Query(blockIdx.y, args.layout.kv_heads, head / workspace.group, 0) +
      head % workspace.group;
  const Scales scales{workspace.sums + query * 2, int64_t{workspace.group} * 2,
                      SplitsOf(args.sequence[blockIdx.y].rows)};
  const float highest = scales.Highest();
  const float sum = scales.Sum(highest);
  float* out = args.out + (int64_t{blockIdx.y} * args.heads + head) * d;
  for (int c = threadIdx.x; c < d; c += kMergeThreads) {
    float value = 0;
    for (int64_t i = 0; i < scales.splits; ++i) {
      value = fmaf(scales.Of(i, highest), workspace.values[(query + i * workspace.group) * d + c],
                   value);
    }
    out[c] = scales.splits > 0 ? value / sum : 0.0f;
  }
}

/// Block (split, KV head, sequence), a thread a row.
__global__ void __launch_bounds__(kSplit) MassKernel(DecodeAttentionArgs args, int64_t max_splits) {
  const PagedSequence sequence = args.sequence[blockIdx.z];
  const int64_t row = int64_t{blockIdx.x} * kSplit + threadIdx.x;
  if (sequence.mass == nullptr || int64_t{blockIdx.x} * kSplit >= sequence.rows) return;
  const Workspace workspace(args, max_splits);
  const int kv_head = blockIdx.y;
  const int64_t first = workspace.Query(blockIdx.z, args.layout.kv_heads, kv_head, 0);
  const int64_t here = workspace.Query(blockIdx.z, args.layout.kv_heads, kv_head, blockIdx.x);
  const bool wanted = row >= sequence.mass_first_row && row < sequence.rows;
  __shared__ float scale[kMaxGroup];
  if (static_cast<int>(threadIdx.x) < workspace.group) {
    const int64_t query = first + threadIdx.x;
    const Scales scales{workspace.sums + query * 2, int64_t{workspace.group} * 2,
                        SplitsOf(sequence.rows)};
    const float highest = scales.Highest();
    scale[threadIdx.x] = scales.Of(blockIdx.x, highest) / scales.Sum(highest);
  }
  __syncthreads();
  if (!wanted) return;
  float mass = 0;
  for (int g = 0; g < workspace.group; ++g) {
    mass = fmaf(scale[g], workspace.weights[(here + g) * kSplit + threadIdx.x], mass);
  }
  sequence.mass[kv_head * sequence.mass_stride + row - sequence.mass_first_row] = mass;
}

template <int kHeadDim, int kQueries, bool kWhole>
absl::Status LaunchPartial(const DecodeAttentionArgs& args, const Grouping& grouping,
                           int64_t max_splits, bool mass, CudaStream stream) {
  const dim3 grid(static_cast<unsigned>(max_splits * grouping.chunks),
                  static_cast<unsigned>(args.layout.kv_heads),
                  static_cast<unsigned>(args.sequences));
  return CudaLaunch("decode attention on the GPU", PartialKernel<kHeadDim, kQueries, kWhole>, grid,
                    kThreads, stream, args, grouping, max_splits, mass);
}

/// Query heads that a block takes: as many as its registers hold. Float rows of other than whole
/// vectors are read number by number, by one build for all sizes.
constexpr int MaxQueries(int head_dim, bool whole) { return !whole ? 1 : head_dim <= 128 ? 4 : 2; }

template <int kHeadDim, bool kWhole>
absl::Status LaunchOfHeadDim(const DecodeAttentionArgs& args, const Grouping& grouping,
                             int64_t max_splits, bool mass, CudaStream stream) {
  constexpr int kMost = MaxQueries(kHeadDim, kWhole);
  const auto launch = [&](auto kernel) { return kernel(args, grouping, max_splits, mass, stream); };
  if constexpr (kMost >= 4) {
    if (grouping.queries == 4) return launch(LaunchPartial<kHeadDim, 4, kWhole>);
    if (grouping.queries == 3) return launch(LaunchPartial<kHeadDim, 3, kWhole>);
  }
  if constexpr (kMost >= 2) {
    if (grouping.queries == 2) return launch(LaunchPartial<kHeadDim, 2, kWhole>);
  }
  return launch(LaunchPartial<kHeadDim, 1, kWhole>);
}

absl::Status LaunchRows(const DecodeAttentionArgs& args, int64_t max_splits, bool mass,
                        CudaStream stream) {
  const KvPageLayout& layout = args.layout;
  const int d = layout.head_dim;
  const bool whole = layout.k.row_bytes % 16 == 0 && layout.v.row_bytes % 16 == 0;
  Grouping grouping;
  grouping.group = args.heads / layout.kv_heads;
  const int most = MaxQueries(d, whole);
  grouping.chunks = (grouping.group + most - 1) / most;
  grouping.queries = (grouping.group + grouping.chunks - 1) / grouping.chunks;
  grouping.scale = 1.0f / std::sqrt(static_cast<float>(d));
  const auto launch = [&](auto of_head_dim) {
    return of_head_dim(args, grouping, max_splits, mass, stream);
  };
  if (!whole) return launch(LaunchOfHeadDim<512, false>);
  if (d <= 64) return launch(LaunchOfHeadDim<64, true>);
  if (d <= 128) return launch(LaunchOfHeadDim<128, true>);
  if (d <= 256) return launch(LaunchOfHeadDim<256, true>);
  return launch(LaunchOfHeadDim<512, true>);
}

int64_t MaxSplits(const DecodeAttentionBounds& bounds) {
  return (bounds.max_rows + kSplit - 1) / kSplit;
}

absl::Status Check(const DecodeAttentionArgs& args, const DecodeAttentionBounds& bounds) {
  const KvPageLayout& layout = args.layout;
  const auto refuse = [](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat("decode attention on the GPU: ", parts...));
  };
  if (layout.head_dim < 1 || layout.head_dim > kDecodeAttentionMaxHeadDim) {
    return refuse("head_dim ", layout.head_dim, " is not in 1 to ", kDecodeAttentionMaxHeadDim);
  }
  if (layout.kv_heads < 1 || args.heads < 1 || args.heads % layout.kv_heads != 0) {
    return refuse(args.heads, " query heads over ", layout.kv_heads,
                  " KV heads; give a positive multiple");
  }
  if (args.heads / layout.kv_heads > kMaxGroup) {
    return refuse(args.heads / layout.kv_heads, " query heads a KV head; at most ", kMaxGroup);
  }
  if (layout.rows_per_page < 1) {
    return refuse("a page of ", layout.page_bytes, " bytes holds no row; give larger pages");
  }
  if (layout.kv_heads > 65535 || args.sequences > 65535) {
    return refuse(args.sequences, " sequences of ", layout.kv_heads,
                  " KV heads; a call takes at most 65535 of each");
  }
  if (bounds.max_rows < 0 || bounds.max_rows > int64_t{1} << 31) {
    return refuse("max_rows ", bounds.max_rows, " is not in 0 to 2^31");
  }
  return absl::OkStatus();
}

}  // namespace

size_t DecodeAttentionCudaWorkspaceFloats(const DecodeAttentionArgs& args,
                                          const DecodeAttentionBounds& bounds) {
  const int per_query = args.layout.head_dim + 2 + (bounds.mass ? kSplit : 0);
  return static_cast<size_t>(int64_t{args.sequences} * args.heads * MaxSplits(bounds)) *
         static_cast<size_t>(per_query);
}

absl::Status DecodeAttentionCuda(const DecodeAttentionArgs& args,
                                 const DecodeAttentionBounds& bounds, CudaStream stream) {
  if (absl::Status status = Check(args, bounds); !status.ok()) return status;
  if (args.sequences < 1) return absl::OkStatus();
  const int64_t max_splits = MaxSplits(bounds);
  if (max_splits > 0) {
    const absl::Status status = LaunchRows(args, max_splits, bounds.mass, stream);
    if (!status.ok()) return status;
  }
  const dim3 heads(static_cast<unsigned>(args.heads), static_cast<unsigned>(args.sequences));
  if (absl::Status status = CudaLaunch("merge of decode attention on the GPU", MergeKernel, heads,
                                       kMergeThreads, stream, args, max_splits);
      !status.ok() || !bounds.mass || max_splits == 0) {
    return status;
  }
  const dim3 splits(static_cast<unsigned>(max_splits), static_cast<unsigned>(args.layout.kv_heads),
                    static_cast<unsigned>(args.sequences));
  return CudaLaunch("mass of decode attention on the GPU", MassKernel, splits, kSplit, stream, args,
                    max_splits);
}

}  // namespace ripplekv
