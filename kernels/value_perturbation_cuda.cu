#include <cuda_runtime.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/bf16.h"
#include "kernels/cuda_launch.cuh"
#include "kernels/philox_words.h"
#include "kernels/value_perturbation_cuda.h"

namespace ripplekv {
namespace {

constexpr int kThreads = 256;
constexpr unsigned kAllLanes = 0xffffffffu;

/// Four neighbouring lanes of a row: what one call of Philox serves.
template <typename T>
struct alignas(4 * sizeof(T)) Block {
  T x[4];
};

__device__ double ToDouble(float x) { return x; }
__device__ double ToDouble(uint16_t x) { return Bf16ToFloat(x); }
__device__ void Put(double x, float* out) { *out = static_cast<float>(x); }
__device__ void Put(double x, uint16_t* out) { *out = FloatToBf16(static_cast<float>(x)); }

/// `count` (1 to 4) lanes; in one access where rows are whole aligned blocks.
template <typename T>
__device__ Block<T> Load(const T* p, int count, bool whole) {
  if (whole) return *reinterpret_cast<const Block<T>*>(p);
  Block<T> block = {};
  for (int i = 0; i < 4; ++i) {
    if (i < count) block.x[i] = p[i];
  }
  return block;
}

template <typename T>
__device__ void Store(const Block<T>& block, T* p, int count, bool whole) {
  if (whole) {
    *reinterpret_cast<Block<T>*>(p) = block;
    return;
  }
  for (int i = 0; i < 4; ++i) {
    if (i < count) p[i] = block.x[i];
  }
}

/// NoiseBlock (philox.h) with CUDA's functions.
__device__ void Normals(const PhiloxWords& words, float (&normals)[4]) {
  for (int pair = 0; pair < 2; ++pair) {
    const double radius = sqrt(-2.0 * log(NoiseUniform(words.word[2 * pair])));
    double sine, cosine;
    sincospi(2.0 * NoiseUniform(words.word[2 * pair + 1]), &sine, &cosine);
    normals[2 * pair] = static_cast<float>(radius * cosine);
    normals[2 * pair + 1] = static_cast<float>(radius * sine);
  }
}

/// Rows [begin, end) of KV head blockIdx.y; `lanes` threads (a power of two, at most a warp) share
/// a row. All threads of a warp come along, since they add up the squares together.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    PerturbKernel(PerturbArgs args, int64_t begin, int64_t end, int lanes, bool whole) {
  const int64_t row = begin + int64_t{blockIdx.x} * (kThreads / lanes) + threadIdx.x / lanes;
  const int first = threadIdx.x % lanes * 4;
  const int step = lanes * 4;
  const int d = row < end ? args.head_dim : 0;  // nothing to do beyond the end
  const int64_t at = blockIdx.y * args.kv_head_stride + row * args.head_dim;
  const T* from = static_cast<const T*>(args.source) + at;
  T* to = static_cast<T*>(args.destination) + at;

  double squares = 0;
  for (int c = first; c < d; c += step) {
    const Block<T> v = Load(from + c, d - c, whole);
    for (int i = 0; i < 4; ++i) squares += ToDouble(v.x[i]) * ToDouble(v.x[i]);
  }
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
    squares += __shfl_xor_sync(kAllLanes, squares, offset);
  }

  const bool touched = args.eta != 0 && row >= args.first_row && row < args.last_row;
  if (!touched && from == to) return;
  const double alpha = static_cast<double>(args.eta) / sqrt(static_cast<double>(args.head_dim));
  const double strength = alpha * sqrt(squares);
  for (int c = first; c < d; c += step) {
    Block<T> v = Load(from + c, d - c, whole);
    if (touched) {
      float normals[4];
      Normals(NoiseWords(args.noise, blockIdx.y, args.first_position + static_cast<uint32_t>(row),
                         static_cast<uint32_t>(c / 4)),
              normals);
      for (int i = 0; i < 4; ++i) Put(ToDouble(v.x[i]) + strength * normals[i], &v.x[i]);
    }
    Store(v, to + c, d - c, whole);
  }
}

template <typename T>
absl::Status Launch(const PerturbArgs& args, int64_t begin, int64_t end, CudaStream stream) {
  const bool whole =
      args.head_dim % 4 == 0 && args.kv_head_stride % 4 == 0 &&
      (reinterpret_cast<uintptr_t>(args.source) | reinterpret_cast<uintptr_t>(args.destination)) %
              sizeof(Block<T>) ==
          0;
  int lanes = 1;
  while (lanes < 32 && lanes * 4 < args.head_dim) lanes *= 2;
  const int64_t rows_per_block = kThreads / lanes;
  const dim3 grid(static_cast<unsigned>((end - begin + rows_per_block - 1) / rows_per_block),
                  static_cast<unsigned>(args.kv_heads));
  return CudaLaunch("perturb values on the GPU", PerturbKernel<T>, grid, kThreads, stream, args,
                    begin, end, lanes, whole);
}

}  // namespace

absl::Status PerturbValuesCuda(const PerturbArgs& args, int64_t row_begin, int64_t row_end,
                               CudaStream stream) {
  if (row_begin >= row_end) return absl::OkStatus();
  if (args.kv_heads < 1 || args.kv_heads > 65535 || args.head_dim < 1) {
    return absl::InvalidArgumentError(absl::StrCat("perturb values on the GPU: ", args.kv_heads,
                                                   " KV heads of ", args.head_dim,
                                                   "; give 1 to 65535 of at least 1"));
  }
  return args.type == KvType::kF32 ? Launch<float>(args, row_begin, row_end, stream)
                                   : Launch<uint16_t>(args, row_begin, row_end, stream);
}

}  // namespace ripplekv
