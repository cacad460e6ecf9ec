#include "model/chunk_attention.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <exception>
#include <optional>

#include "absl/strings/str_cat.h"
#include "kernels/prefill_attention.h"

namespace ripplekv {
namespace {

at::ScalarType ScalarTypeOf(KvType type) {
  return type == KvType::kF32 ? at::kFloat : at::kBFloat16;
}

// LibTorch splits the keys of very few queries (1 to 3 in version 2.13) by the number of threads,
// and bits with them: fewer are padded to so many, whose results nobody reads.
constexpr int64_t kLeastQueries = 32;

absl::Status ScaledDotProductAttention(const ChunkAttentionArgs& args) {
  try {
    c10::InferenceMode inference;
    const int64_t d = args.head_dim;
    const int64_t n = args.queries;
    const int64_t padded = std::max(n, kLeastQueries);
    const int64_t rows = args.cached + n;
    const auto options = at::TensorOptions().dtype(ScalarTypeOf(args.type));
    const int64_t q_row = static_cast<int64_t>(args.heads) * d;
    // from_blob takes non-const pointers; q, k and v are only read.
    const auto blob = [&](const void* data, at::IntArrayRef sizes, at::IntArrayRef strides) {
      return at::from_blob(const_cast<void*>(data), sizes, strides, options);
    };
    at::Tensor q = blob(args.q, {1, args.heads, n, d}, {n * q_row, d, q_row, 1});
    if (padded > n) q = at::constant_pad_nd(q, {0, 0, 0, padded - n});
    const at::Tensor k = blob(args.k, {1, args.kv_heads, rows, d},
                              {args.kv_heads * args.kv_head_stride, args.kv_head_stride, d, 1});
    const at::Tensor v = blob(args.v, {1, args.kv_heads, rows, d},
                              {args.kv_heads * args.kv_head_stride, args.kv_head_stride, d, 1});
    std::optional<at::Tensor> mask;
    const bool causal = args.cached == 0 && padded == n;
    if (!causal) {
      // Padding sees all rows.
      mask = at::ones({padded, rows}, at::TensorOptions().dtype(at::kBool)).tril_(args.cached);
    }
    const bool grouped = args.heads != args.kv_heads;
    const at::Tensor out =
        at::scaled_dot_product_attention(q, k, v, mask, 0.0, causal, std::nullopt, grouped);
    at::Tensor target =
        at::from_blob(args.out, {1, args.heads, n, d}, {n * q_row, d, q_row, 1}, options);
    target.copy_(out.narrow(2, 0, n));
    return absl::OkStatus();
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("LibTorch failed in attention over ",
                                            args.cached + args.queries, " rows: ", e.what()));
  }
}

}  // namespace

absl::Status ChunkAttention(const ChunkAttentionArgs& args) {
  // LibTorch multiplies bf16 matrices through fp32 on many processors that have the instructions.
  if (args.type != KvType::kBf16 || !PrefillAttentionSupported(args.head_dim)) {
    return ScaledDotProductAttention(args);
  }
  PrefillAttention({.heads = args.heads,
                    .kv_heads = args.kv_heads,
                    .head_dim = args.head_dim,
                    .queries = args.queries,
                    .cached = args.cached,
                    .q = static_cast<const uint16_t*>(args.q),
                    .k = static_cast<const uint16_t*>(args.k),
                    .v = static_cast<const uint16_t*>(args.v),
                    .kv_head_stride = args.kv_head_stride,
                    .out = static_cast<uint16_t*>(args.out)},
                   args.pool);
  return absl::OkStatus();
}

}  // namespace ripplekv
