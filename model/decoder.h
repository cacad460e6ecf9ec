#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/kv_type.h"
#include "kernels/thread_pool.h"
#include "model/decoder_chunks.h"
#include "model/decoder_rows.h"
#include "model/weights.h"

namespace ripplekv {

/// What prefill multiplies and what the cache holds. kF32 is for checks; kBf16 keeps the residual
/// stream in fp32.
enum class ComputeType { kF32, kBf16 };

/// Element type of q, k, v and attention on the chunk path, and of cached rows in `compute`.
constexpr KvType KvTypeOf(ComputeType compute) {
  return compute == ComputeType::kF32 ? KvType::kF32 : KvType::kBf16;
}

/// What multiplies chunks of tokens.
enum class ChunkPath {
  kBest,      // our kernels in bf16 where the model's shape allows it, else LibTorch
  kLibTorch,  // LibTorch always, for checks
};

std::string_view ComputeTypeName(ComputeType type);  // "fp32", "bf16"
absl::StatusOr<ComputeType> ParseComputeType(std::string_view name);

/// The decoder's math, layer by layer. It never sees a cache: whoever drives the layer loop owns
/// attention.
///
///   Embed -> for each layer { ProjectQkv -> (the caller's attention) -> Finish } -> Logits
///
/// Two paths give the same function:
/// - chunks: up to kChunkTokens tokens, on one layer's weights expanded to the compute type (call
///   ExpandLayer first; expansion is kept until another layer is asked for). In bf16 by our kernels
///   where they fit: a token's bits depend on its position only. Otherwise by LibTorch, rows padded
///   to a multiple of kTileTokens: they depend on its place in the prompt and the prompt's length;
/// - rows: 1 to kMaxRows tokens of different sequences, by kernels on the packed weights.
///   kF32: activations in fp32; kBf16: as 16-bit integers where the processor has dot products for
///   them, otherwise in fp32 too (kernels/panel_linear.h). A row has the same bits for any number
///   of rows and threads.
/// Not thread-safe: one engine thread owns it. LibTorch's exceptions become INTERNAL statuses.
class Decoder {
 public:
  static constexpr int kChunkTokens = 256;
  static constexpr int kTileTokens = 32;
  static constexpr int kMaxRows = DecoderRows::kMaxRows;

  /// `pool` splits the rows path and must outlive the decoder; LibTorch's own threads are set to
  /// pool->threads().
  static absl::StatusOr<std::unique_ptr<Decoder>> Create(std::shared_ptr<const Weights> weights,
                                                         ComputeType compute, ThreadPool* pool,
                                                         ChunkPath path = ChunkPath::kBest);
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  const ModelConfig& config() const { return weights_->config(); }
  const Weights& weights() const { return *weights_; }
  ComputeType compute() const { return compute_; }
  KvType kv_type() const { return KvTypeOf(compute_); }
  ThreadPool* pool() const { return pool_; }

  /// hidden[i, :] = embedding of tokens[i]. Token ids must be below vocab_size.
  void Embed(absl::Span<const int32_t> tokens, float* hidden) const;

  // Chunk path.
  void ExpandLayer(int layer);
  /// hidden [tokens, hidden_size] at positions first_position, first_position + 1, ...; tokens <=
  /// kChunkTokens. q: [tokens, heads, d], rotated, not scaled. k and v: row t of KV head h goes to
  /// base + (h * kv_head_stride + t * d) elements. All of kv_type(). k is rotated.
  absl::Status ProjectQkv(int layer, const float* hidden, int tokens, int64_t first_position,
                          void* q, void* k, void* v, int64_t kv_head_stride);
  /// hidden += Wo attention; hidden += FFN(hidden). attention: [tokens, heads, d] of kv_type().
  absl::Status Finish(int layer, const void* attention, int tokens, float* hidden);

  /// logits [tokens, vocab] = head(norm(hidden)), fp32; tokens <= kChunkTokens. On our kernels from
  /// hidden states rounded to bf16, else as Logits.
  void ChunkLogits(const float* hidden, int tokens, float* logits);

  // Rows path.
  /// q [rows, heads, d], k and v [rows, kv_heads, d], fp32, q and k rotated.
  void ProjectQkvRows(int layer, const float* hidden, int rows, const int32_t* positions, float* q,
                      float* k, float* v) {
    rows_->ProjectQkv(layer, hidden, rows, positions, q, k, v);
  }
  /// attention: [rows, heads, d] fp32.
  void FinishRows(int layer, const float* attention, int rows, float* hidden) {
    rows_->Finish(layer, attention, rows, hidden);
  }

  /// logits [rows, vocab] = head(norm(hidden)), any number of rows, fp32, by the rows path's
  /// kernels: the bits of a row do not depend on the others.
  void Logits(const float* hidden, int rows, float* logits) { rows_->Logits(hidden, rows, logits); }

 private:
  Decoder(std::shared_ptr<const Weights> weights, ComputeType compute, ThreadPool* pool);

  struct Chunk;  // LibTorch tensors of the chunk path
  absl::Status CreateChunk();
  void ExpandChunkLayer(int layer);
  absl::Status ProjectQkvByLibTorch(int layer, const float* hidden, int tokens,
                                    int64_t first_position, void* q, void* k, void* v,
                                    int64_t kv_head_stride);
  absl::Status FinishByLibTorch(int layer, const void* attention, int tokens, float* hidden);

  std::shared_ptr<const Weights> weights_;
  ComputeType compute_;
  ThreadPool* pool_;
  std::unique_ptr<DecoderChunks> chunks_;  // null: chunk_ is used
  std::unique_ptr<Chunk> chunk_;
  std::vector<float> inv_freq_;  // [d / 2]
  std::unique_ptr<DecoderRows> rows_;
};

}  // namespace ripplekv
