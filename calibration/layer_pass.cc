#include "calibration/layer_pass.h"

#include <algorithm>

#include "model/chunk_attention.h"

namespace ripplekv {

LayerPass::LayerPass(Decoder* decoder) : decoder_(decoder) {
  const ModelConfig& config = decoder_->config();
  q_.resize(static_cast<size_t>(Decoder::kChunkTokens * config.heads * config.head_dim) *
            KvTypeBytes(decoder_->kv_type()));
  attention_.resize(q_.size());
}

absl::Status LayerPass::Prefix(int layer, const LayerRows& rows, int64_t begin, int64_t end,
                               float* hidden, RowSelector* selector, bool only_rows) {
  for (int64_t start = begin; start < end; start += Decoder::kChunkTokens) {
    const int tokens = static_cast<int>(std::min<int64_t>(Decoder::kChunkTokens, end - start));
    float* const chunk = hidden + start * decoder_->config().hidden;
    const RowsBefore before = {.k = rows.k, .v = rows.v, .rows = start, .stride = rows.stride};
    if (absl::Status s = Project(layer, before, start, tokens, chunk); !s.ok()) return s;
    if (selector != nullptr) selector->TakeQueries(start, tokens, q_.data());
    if (only_rows) continue;
    if (absl::Status s = Attend(layer, before, tokens, chunk); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status LayerPass::Extend(int layer, const RowsBefore& before, int64_t first, int count,
                               float* hidden) {
  for (int start = 0; start < count; start += Decoder::kChunkTokens) {
    const int tokens = std::min(Decoder::kChunkTokens, count - start);
    RowsBefore rows = before;
    rows.rows += start;
    float* const chunk = hidden + int64_t{start} * decoder_->config().hidden;
    if (absl::Status s = Project(layer, rows, first + start, tokens, chunk); !s.ok()) return s;
    if (absl::Status s = Attend(layer, rows, tokens, chunk); !s.ok()) return s;
  }
  return absl::OkStatus();
}

/// A chunk's q, and its keys and values behind the rows before it.
absl::Status LayerPass::Project(int layer, const RowsBefore& before, int64_t position, int tokens,
                                const float* chunk) {
  const size_t offset = static_cast<size_t>(before.rows * decoder_->config().head_dim) *
                        KvTypeBytes(decoder_->kv_type());
  return decoder_->ProjectQkv(layer, chunk, tokens, position, q_.data(), before.k + offset,
                              before.v + offset, before.stride);
}

/// The rest of the layer for a projected chunk.
absl::Status LayerPass::Attend(int layer, const RowsBefore& before, int tokens, float* chunk) {
  const ModelConfig& config = decoder_->config();
  const ChunkAttentionArgs args = {.type = decoder_->kv_type(),
                                   .heads = config.heads,
                                   .kv_heads = config.kv_heads,
                                   .head_dim = config.head_dim,
                                   .queries = tokens,
                                   .cached = before.rows,
                                   .q = q_.data(),
                                   .k = before.k,
                                   .v = before.v,
                                   .kv_head_stride = before.stride,
                                   .out = attention_.data(),
                                   .pool = decoder_->pool()};
  if (absl::Status s = ChunkAttention(args); !s.ok()) return s;
  return decoder_->Finish(layer, attention_.data(), tokens, chunk);
}

}  // namespace ripplekv
