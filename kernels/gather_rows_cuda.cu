#include <cuda_runtime.h>

#include "absl/strings/str_cat.h"
#include "kernels/cuda_launch.cuh"
#include "kernels/gather_rows_cuda.h"
#include "kernels/kv_encode.cuh"

namespace ripplekv {
namespace {

constexpr int kThreads = 256;

/// Entries [begin, end) of KV head blockIdx.y. `lanes` threads (a power of two) share a row, each
/// moves a piece of the key and the same piece of the value at a time.
template <typename Piece>
__global__ void __launch_bounds__(kThreads)
    GatherKernel(GatherRowsArgs args, int64_t begin, int64_t end, int lanes) {
  const int64_t entry = begin + int64_t{blockIdx.x} * (kThreads / lanes) + threadIdx.x / lanes;
  if (entry >= end) return;
  const int lane = threadIdx.x % lanes;
  const int head = blockIdx.y;
  const KvPageLayout& layout = args.layout;
  const int64_t source =
      args.indices == nullptr ? entry : args.indices[head * args.indices_stride + entry];
  const auto row = static_cast<uint32_t>(args.first_row + entry);
  const auto per_page = static_cast<uint32_t>(layout.rows_per_page);
  const int in_page = static_cast<int>(row % per_page);
  std::byte* page = args.pages[row / per_page];
  const int64_t element_bytes = static_cast<int64_t>(KvTypeBytes(layout.type));
  const int64_t from = (head * args.kv_head_stride + source * layout.head_dim) * element_bytes;
  const auto* k = reinterpret_cast<const Piece*>(static_cast<const std::byte*>(args.k) + from);
  const auto* v = reinterpret_cast<const Piece*>(static_cast<const std::byte*>(args.v) + from);
  auto* to_k = reinterpret_cast<Piece*>(page + layout.KeyOffset(head, in_page));
  auto* to_v = reinterpret_cast<Piece*>(page + layout.ValueOffset(head, in_page));
  const int pieces = static_cast<int>(layout.head_dim * element_bytes / sizeof(Piece));
  for (int i = lane; i < pieces; i += lanes) {
    const Piece key = k[i];
    const Piece value = v[i];
    to_k[i] = key;
    to_v[i] = value;
  }
  if (lane == 0) {
    *reinterpret_cast<int32_t*>(page + layout.PositionOffset(head, in_page)) =
        args.first_position + static_cast<int32_t>(source);
  }
}

/// The same where pages store other types than the rows have: a warp rounds the keys or the values
/// (blockIdx.z) of an entry.
__global__ void __launch_bounds__(kThreads)
    EncodeKernel(GatherRowsArgs args, int64_t begin, int64_t end) {
  constexpr int kWarp = cuda_encode::kWarp;
  const int64_t entry = begin + int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (entry >= end) return;  // the whole warp
  const int lane = threadIdx.x % kWarp;
  const int head = blockIdx.y;
  const KvPageLayout& layout = args.layout;
  const int64_t source =
      args.indices == nullptr ? entry : args.indices[head * args.indices_stride + entry];
  const auto row = static_cast<uint32_t>(args.first_row + entry);
  const auto per_page = static_cast<uint32_t>(layout.rows_per_page);
  const int in_page = static_cast<int>(row % per_page);
  std::byte* page = args.pages[row / per_page];
  const int64_t from = head * args.kv_head_stride + source * layout.head_dim;
  const KvSide& side = blockIdx.z == 0 ? layout.k : layout.v;
  const void* rows = blockIdx.z == 0 ? args.k : args.v;
  std::byte* to = page + layout.RowOffset(side, head, in_page);
  std::byte* params = page + layout.ParamOffset(side, head, in_page);
  if (side.type == layout.type) {  // the bits, whatever they are
    for (int c = lane; c < layout.head_dim; c += kWarp) {
      if (side.type == KvType::kF32) {
        reinterpret_cast<uint32_t*>(to)[c] = static_cast<const uint32_t*>(rows)[from + c];
      } else {
        reinterpret_cast<uint16_t*>(to)[c] = static_cast<const uint16_t*>(rows)[from + c];
      }
    }
  } else if (layout.type == KvType::kF32) {
    const float* x = static_cast<const float*>(rows) + from;
    cuda_encode::EncodeRow(
        side.role, side.type, [&](int c) { return x[c]; }, layout.head_dim, lane, to, params);
  } else {
    const uint16_t* x = static_cast<const uint16_t*>(rows) + from;
    cuda_encode::EncodeRow(
        side.role, side.type, [&](int c) { return Bf16ToFloat(x[c]); }, layout.head_dim, lane, to,
        params);
  }
  if (blockIdx.z == 0 && lane == 0) {
    *reinterpret_cast<int32_t*>(page + layout.PositionOffset(head, in_page)) =
        args.first_position + static_cast<int32_t>(source);
  }
}

/// Whether rows of `bytes` bytes lie at multiples of `piece`.
bool Divides(size_t piece, const GatherRowsArgs& args, size_t bytes) {
  const size_t stride = static_cast<size_t>(args.kv_head_stride) * KvTypeBytes(args.layout.type);
  return (reinterpret_cast<uintptr_t>(args.k) | reinterpret_cast<uintptr_t>(args.v) | stride |
          bytes) %
             piece ==
         0;
}

template <typename Piece>
absl::Status Launch(const GatherRowsArgs& args, int64_t begin, int64_t end, size_t row_bytes,
                    CudaStream stream) {
  int lanes = 1;
  while (lanes < 32 && lanes * sizeof(Piece) < row_bytes) lanes *= 2;
  const int64_t rows_per_block = kThreads / lanes;
  const dim3 grid(static_cast<unsigned>((end - begin + rows_per_block - 1) / rows_per_block),
                  static_cast<unsigned>(args.layout.kv_heads));
  return CudaLaunch("gather rows on the GPU", GatherKernel<Piece>, grid, kThreads, stream, args,
                    begin, end, lanes);
}

}  // namespace

absl::Status GatherRowsCuda(const GatherRowsArgs& args, int64_t begin, int64_t end,
                            CudaStream stream) {
  if (begin >= end) return absl::OkStatus();
  const KvPageLayout& layout = args.layout;
  if (layout.rows_per_page < 1 || layout.kv_heads < 1 || layout.kv_heads > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("gather rows on the GPU: a page of ", layout.page_bytes, " bytes holds ",
                     layout.rows_per_page, " rows of ", layout.kv_heads,
                     " KV heads; give pages of at least one row and 1 to 65535 heads"));
  }
  if (args.first_row + begin < 0 || args.first_row + end > int64_t{1} << 31) {
    return absl::InvalidArgumentError(
        absl::StrCat("gather rows on the GPU: rows ", args.first_row + begin, " to ",
                     args.first_row + end, " of a sequence are not in 0 to 2^31"));
  }
  if (!(layout.stored() == KvTypes(layout.type))) {
    constexpr int kRows = kThreads / cuda_encode::kWarp;
    const dim3 grid(static_cast<unsigned>((end - begin + kRows - 1) / kRows),
                    static_cast<unsigned>(layout.kv_heads), 2);
    return CudaLaunch("gather and round rows on the GPU", EncodeKernel, grid, kThreads, stream,
                      args, begin, end);
  }
  const size_t row_bytes = static_cast<size_t>(layout.head_dim) * KvTypeBytes(layout.type);
  if (Divides(16, args, row_bytes)) return Launch<uint4>(args, begin, end, row_bytes, stream);
  if (Divides(4, args, row_bytes)) return Launch<uint32_t>(args, begin, end, row_bytes, stream);
  return Launch<uint16_t>(args, begin, end, row_bytes, stream);
}

}  // namespace ripplekv
