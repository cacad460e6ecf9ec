#include "server/engine/prefill.h"

#include <algorithm>
#include <cstring>
#include <variant>

#include "kernels/window_scores.h"
#include "model/chunk_attention.h"

namespace ripplekv {

Prefill::Prefill(Decoder* decoder, PageArena* arena, SequenceCache* cache,
                 absl::Span<const int32_t> prompt, const LayerBudgets& budgets,
                 const SelectorSpec& selector, int sinks)
    : decoder_(decoder),
      arena_(arena),
      cache_(cache),
      tokens_(static_cast<int64_t>(prompt.size())),
      budgets_(budgets),
      snapkv_(std::get<SnapKv>(selector)),
      sinks_(sinks) {
  const ModelConfig& c = decoder_->config();
  const size_t q_row = static_cast<size_t>(c.heads * c.head_dim) * KvTypeBytes(decoder_->kv_type());
  hidden_.resize(prompt.size() * static_cast<size_t>(c.hidden));
  const size_t chunk = std::min(prompt.size(), static_cast<size_t>(Decoder::kChunkTokens));
  q_.resize(chunk * q_row);
  attention_.resize(chunk * q_row);
  window_q_.resize(static_cast<size_t>(snapkv_.window) * q_row);
  decoder_->Embed(prompt, hidden_.data());
}

absl::Status Prefill::Step() {
  const ModelConfig& c = decoder_->config();
  const size_t side =
      static_cast<size_t>(tokens_ * c.kv_heads * c.head_dim) * KvTypeBytes(decoder_->kv_type());
  auto full = arena_->AcquirePrefillLayer(2 * side);
  if (!full.ok()) return full.status();
  std::byte* k = full->data();
  std::byte* v = k + side;
  if (absl::Status status = Attend(k, v); !status.ok()) return status;
  if (absl::Status status = Keep(k, v); !status.ok()) return status;
  ++layer_;
  return absl::OkStatus();
}

absl::Status Prefill::Attend(std::byte* k, std::byte* v) {
  const ModelConfig& c = decoder_->config();
  const size_t element = KvTypeBytes(decoder_->kv_type());
  const size_t q_row = static_cast<size_t>(c.heads * c.head_dim) * element;
  const int64_t stride = tokens_ * c.head_dim;
  const int64_t window_begin = tokens_ - snapkv_.window;
  const bool last_layer = layer_ + 1 == c.layers;
  decoder_->ExpandLayer(layer_);
  for (int64_t begin = 0; begin < tokens_; begin += Decoder::kChunkTokens) {
    const int n = static_cast<int>(std::min<int64_t>(Decoder::kChunkTokens, tokens_ - begin));
    float* hidden = hidden_.data() + begin * c.hidden;
    const size_t row_offset = static_cast<size_t>(begin * c.head_dim) * element;
    if (absl::Status status = decoder_->ProjectQkv(layer_, hidden, n, begin, q_.data(),
                                                   k + row_offset, v + row_offset, stride);
        !status.ok()) {
      return status;
    }
    if (begin + n > window_begin && window_begin > 0) {
      const int64_t first = std::max(begin, window_begin);
      std::memcpy(window_q_.data() + static_cast<size_t>(first - window_begin) * q_row,
                  q_.data() + static_cast<size_t>(first - begin) * q_row,
                  static_cast<size_t>(begin + n - first) * q_row);
    }
    // Above the last layer only the last token is read.
    if (last_layer && begin + n < tokens_) continue;
    const ChunkAttentionArgs args = {.type = decoder_->kv_type(),
                                     .heads = c.heads,
                                     .kv_heads = c.kv_heads,
                                     .head_dim = c.head_dim,
                                     .queries = n,
                                     .cached = begin,
                                     .q = q_.data(),
                                     .k = k,
                                     .v = v,
                                     .kv_head_stride = stride,
                                     .out = attention_.data(),
                                     .pool = decoder_->pool()};
    if (absl::Status status = ChunkAttention(args); !status.ok()) return status;
    if (absl::Status status = decoder_->Finish(layer_, attention_.data(), n, hidden); !status.ok())
      return status;
  }
  return absl::OkStatus();
}

absl::Status Prefill::Keep(const std::byte* k, const std::byte* v) {
  const int64_t stride = tokens_ * decoder_->config().head_dim;
  const int64_t budget = budgets_.layer[static_cast<size_t>(layer_)];
  if (budget >= tokens_) return cache_->StoreAll(layer_, k, v, stride, tokens_);
  std::vector<int32_t> indices;
  if (absl::Status status = Select(k, budget, indices); !status.ok()) return status;
  return cache_->Compact(layer_, k, v, stride, indices, budget);
}

absl::Status Prefill::Select(const std::byte* k, int64_t budget, std::vector<int32_t>& indices) {
  const ModelConfig& c = decoder_->config();
  const int64_t positions = tokens_ - snapkv_.window;
  scores_.resize(static_cast<size_t>(c.heads * positions));
  group_scores_.resize(static_cast<size_t>(c.kv_heads * positions));
  WindowScoresArgs args;
  args.type = decoder_->kv_type();
  args.heads = c.heads;
  args.kv_heads = c.kv_heads;
  args.head_dim = c.head_dim;
  args.window = snapkv_.window;
  args.rows = tokens_;
  args.q = window_q_.data();
  args.k = k;
  args.kv_head_stride = tokens_ * c.head_dim;
  args.pooling = snapkv_.pooling;
  args.kernel = snapkv_.kernel;
  args.scores = scores_.data();
  decoder_->pool()->ParallelFor(c.heads, 1, [&](int64_t begin, int64_t end) {
    WindowScores(args, static_cast<int>(begin), static_cast<int>(end));
  });
  MeanOverGroup(scores_.data(), c.heads, c.kv_heads, positions, group_scores_.data());
  indices.reserve(static_cast<size_t>(c.kv_heads * budget));
  for (int h = 0; h < c.kv_heads; ++h) {
    auto kept = SelectPositions(
        absl::MakeConstSpan(group_scores_)
            .subspan(static_cast<size_t>(h * positions), static_cast<size_t>(positions)),
        tokens_, budget, sinks_, snapkv_.window);
    if (!kept.ok()) return kept.status();
    indices.insert(indices.end(), kept->begin(), kept->end());
  }
  return absl::OkStatus();
}

void Prefill::Logits(float* logits) {
  decoder_->Logits(hidden_.data() + (tokens_ - 1) * decoder_->config().hidden, 1, logits);
}

}  // namespace ripplekv
