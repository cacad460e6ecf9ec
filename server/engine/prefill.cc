#include "server/engine/prefill.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <numeric>
#include <variant>

#include "kernels/decode_attention.h"
#include "kernels/key_scores.h"
#include "model/chunk_attention.h"

namespace ripplekv {
namespace {

/// Scores of `tokens` tokens by `queries` of them, without what they are computed from.
KeyScoresArgs ScoresOf(const ModelConfig& c, KvType type, const SnapKv& snapkv, int64_t tokens,
                       int queries) {
  return {.type = type,
          .heads = c.heads,
          .kv_heads = c.kv_heads,
          .head_dim = c.head_dim,
          .rows = tokens,
          .queries = queries,
          .kv_head_stride = tokens * c.head_dim,
          .end = tokens - snapkv.window,
          .divisor = KeyScoreDivisor::kCount,
          .pooling = snapkv.pooling,
          .kernel = snapkv.kernel};
}

}  // namespace

Prefill::Prefill(Decoder* decoder, PageArena* arena, SequenceCache* cache, const PrefillSpec& spec)
    : decoder_(decoder),
      arena_(arena),
      cache_(cache),
      spec_(spec),
      snapkv_(std::get<SnapKv>(spec.selector)),
      tokens_(static_cast<int64_t>(spec.tokens.size())) {
  const ModelConfig& c = decoder_->config();
  const size_t q_row = static_cast<size_t>(c.heads * c.head_dim) * KvTypeBytes(decoder_->kv_type());
  const size_t chunk = std::min(spec_.tokens.size(), static_cast<size_t>(Decoder::kChunkTokens));
  q_.resize(chunk * q_row);
  attention_.resize(chunk * q_row);
  if (spec_.keep == KeepRows::kCompact) {
    scoring_tokens_.resize(static_cast<size_t>(std::min<int64_t>(tokens_, snapkv_.window)));
    std::iota(scoring_tokens_.begin(), scoring_tokens_.end(),
              static_cast<int32_t>(tokens_) - static_cast<int32_t>(scoring_tokens_.size()));
    scoring_q_.resize(scoring_tokens_.size() * q_row);
  }
  base_ = cache_->rows(0);
  layer_work_ = LayerWork(c, tokens_, base_);
}

// Not before the first slice: a prompt that waits for others holds no residual stream.
void Prefill::Embed() {
  const auto width = static_cast<size_t>(decoder_->config().hidden);
  hidden_.resize(spec_.tokens.size() * width);
  decoder_->Embed(spec_.tokens, hidden_.data());
  if (spec_.measure_floor) {
    floor_hidden_.assign(hidden_.end() - static_cast<std::ptrdiff_t>(width), hidden_.end());
  }
}

size_t Prefill::WorkBytes(const ModelConfig& c, KvType type, int64_t tokens,
                          const SelectorSpec& selector, int threads) {
  const auto& snapkv = std::get<SnapKv>(selector);
  const int64_t chunk = std::min<int64_t>(tokens, Decoder::kChunkTokens);
  const int64_t queries = std::min<int64_t>(tokens, snapkv.window);
  int64_t floats = tokens * c.hidden;
  if (tokens > snapkv.window) {
    const KeyScoresArgs scores = ScoresOf(c, type, snapkv, tokens, snapkv.window);
    floats += (c.heads + c.kv_heads) * scores.end + KeyScoresWorkspaceFloats(scores, threads);
  }
  return static_cast<size_t>(floats) * sizeof(float) +
         static_cast<size_t>((2 * chunk + queries) * c.heads * c.head_dim) * KvTypeBytes(type);
}

int64_t Prefill::LayerWork(const ModelConfig& c, int64_t tokens, int64_t base) {
  const int64_t q = int64_t{c.heads} * c.head_dim;
  const int64_t kv = int64_t{c.kv_heads} * c.head_dim;
  const int64_t weights = c.hidden * (2 * q + 2 * kv + 3 * int64_t{c.ffn});
  return tokens * (weights + 2 * q * (base + tokens / 2 + 1));
}

int64_t Prefill::remaining_work() const {
  return (decoder_->config().layers - layer_) * layer_work_;
}

absl::Status Prefill::Step() {
  if (!full_.has_value()) {
    if (absl::Status status = StartLayer(); !status.ok()) return status;
  }
  return ends_layer_next() ? EndLayer() : Chunk();
}

absl::Status Prefill::StartLayer() {
  const ModelConfig& c = decoder_->config();
  if (hidden_.empty()) Embed();
  assert(spec_.keep != KeepRows::kCompact || cache_->rows(layer_) == 0);
  base_ = cache_->rows(layer_);
  layer_work_ = LayerWork(c, tokens_, base_);
  const size_t side = static_cast<size_t>(stride() * c.kv_heads) * KvTypeBytes(decoder_->kv_type());
  auto full = arena_->AcquirePrefillLayer(2 * side);
  if (!full.ok()) return full.status();
  full_ = *std::move(full);
  if (base_ > 0) cache_->CopyRows(layer_, k(), v(), stride());
  next_ = 0;
  return absl::OkStatus();
}

absl::Status Prefill::Chunk() {
  const ModelConfig& c = decoder_->config();
  const size_t element = KvTypeBytes(decoder_->kv_type());
  const size_t q_row = static_cast<size_t>(c.heads * c.head_dim) * element;
  const int64_t begin = next_;
  const int n = static_cast<int>(std::min<int64_t>(Decoder::kChunkTokens, tokens_ - begin));
  float* hidden = hidden_.data() + begin * c.hidden;
  const size_t row_offset = static_cast<size_t>((base_ + begin) * c.head_dim) * element;
  decoder_->ExpandLayer(layer_);  // again: other work may have expanded another one since
  if (absl::Status status =
          decoder_->ProjectQkv(layer_, hidden, n, spec_.first_position + begin, q_.data(),
                               k() + row_offset, v() + row_offset, stride());
      !status.ok()) {
    return status;
  }
  KeepScoringQueries(begin, begin + n);
  next_ = begin + n;
  // Above the last layer only the last token is read.
  int64_t first = begin;
  if (layer_ + 1 == c.layers && !spec_.all_logits) {
    if (next_ < tokens_) return absl::OkStatus();
    first = tokens_ - 1;
  }
  const ChunkAttentionArgs args = {.type = decoder_->kv_type(),
                                   .heads = c.heads,
                                   .kv_heads = c.kv_heads,
                                   .head_dim = c.head_dim,
                                   .queries = static_cast<int>(next_ - first),
                                   .cached = base_ + first,
                                   .q = q_.data() + static_cast<size_t>(first - begin) * q_row,
                                   .k = k(),
                                   .v = v(),
                                   .kv_head_stride = stride(),
                                   .out = attention_.data(),
                                   .pool = decoder_->pool()};
  if (absl::Status status = ChunkAttention(args); !status.ok()) return status;
  return decoder_->Finish(layer_, attention_.data(), args.queries,
                          hidden_.data() + first * c.hidden);
}

/// Of the chunk [begin, end) in q_.
void Prefill::KeepScoringQueries(int64_t begin, int64_t end) {
  const ModelConfig& c = decoder_->config();
  const size_t q_row = static_cast<size_t>(c.heads * c.head_dim) * KvTypeBytes(decoder_->kv_type());
  const auto first = std::lower_bound(scoring_tokens_.begin(), scoring_tokens_.end(), begin);
  for (auto token = first; token != scoring_tokens_.end() && *token < end; ++token) {
    std::memcpy(scoring_q_.data() + static_cast<size_t>(token - scoring_tokens_.begin()) * q_row,
                q_.data() + static_cast<size_t>(*token - begin) * q_row, q_row);
  }
}

absl::Status Prefill::EndLayer() {
  if (spec_.measure_floor) QueryFloor();
  if (absl::Status status = Keep(); !status.ok()) return status;
  size_t bytes = cache_->bytes() + full_->size_bytes();
  if (spec_.full_cache != nullptr) {
    if (absl::Status status = spec_.full_cache->StoreAll(layer_, k(), v(), stride(), tokens_);
        !status.ok()) {
      return status;
    }
    bytes += spec_.full_cache->bytes();
  }
  peak_bytes_ = std::max(peak_bytes_, bytes);
  full_.reset();
  next_ = 0;
  ++layer_;
  return absl::OkStatus();
}

absl::Status Prefill::Keep() {
  const size_t offset =
      static_cast<size_t>(base_ * decoder_->config().head_dim) * KvTypeBytes(decoder_->kv_type());
  switch (spec_.keep) {
    case KeepRows::kNone:
      return absl::OkStatus();
    case KeepRows::kAll:
      return cache_->AppendRows(layer_, k() + offset, v() + offset, stride(), tokens_,
                                static_cast<int32_t>(spec_.first_position));
    case KeepRows::kCompact:
      break;
  }
  const int64_t budget = spec_.budgets->layer[static_cast<size_t>(layer_)];
  if (budget >= tokens_) return cache_->StoreAll(layer_, k(), v(), stride(), tokens_);
  std::vector<int32_t> indices;
  if (absl::Status status = Select(budget, indices); !status.ok()) return status;
  return cache_->Compact(layer_, k(), v(), stride(), indices, budget);
}

absl::Status Prefill::Select(int64_t budget, std::vector<int32_t>& indices) {
  const ModelConfig& c = decoder_->config();
  KeyScoresArgs args =
      ScoresOf(c, decoder_->kv_type(), snapkv_, tokens_, static_cast<int>(scoring_tokens_.size()));
  const int64_t positions = args.end;
  scores_.resize(static_cast<size_t>(c.heads * positions));
  group_scores_.resize(static_cast<size_t>(c.kv_heads * positions));
  score_workspace_.resize(
      static_cast<size_t>(KeyScoresWorkspaceFloats(args, decoder_->pool()->threads())));
  args.positions = scoring_tokens_.data();
  args.q = scoring_q_.data();
  args.k = k();
  args.scores = scores_.data();
  args.workspace = score_workspace_.data();
  KeyScores(args, decoder_->pool());
  MeanOverGroup(scores_.data(), c.heads, c.kv_heads, positions, group_scores_.data());
  indices.reserve(static_cast<size_t>(c.kv_heads * budget));
  for (int h = 0; h < c.kv_heads; ++h) {
    auto kept = SelectPositions(
        absl::MakeConstSpan(group_scores_)
            .subspan(static_cast<size_t>(h * positions), static_cast<size_t>(positions)),
        tokens_, budget, spec_.sinks, snapkv_.window);
    if (!kept.ok()) return kept.status();
    indices.insert(indices.end(), kept->begin(), kept->end());
  }
  return absl::OkStatus();
}

void Prefill::QueryFloor() {
  const ModelConfig& c = decoder_->config();
  const auto q_width = static_cast<size_t>(c.heads * c.head_dim);
  const auto kv_width = static_cast<size_t>(c.kv_heads * c.head_dim);
  std::vector<float> q(q_width), key(kv_width), value(kv_width), attention(q_width);
  const auto position = static_cast<int32_t>(spec_.first_position + tokens_ - 1);
  decoder_->ProjectQkvRows(layer_, floor_hidden_.data(), 1, &position, q.data(), key.data(),
                           value.data());
  // The full layer read as one page that holds all rows; the token's own row is in it.
  const std::byte* page = k();
  const PagedSequence sequence = {.pages = &page, .rows = rows()};
  DecodeAttentionArgs args;
  args.layout = KvPageLayout::Contiguous(decoder_->kv_type(), c.kv_heads, c.head_dim,
                                         static_cast<int>(rows()), full_->size_bytes() / 2);
  args.heads = c.heads;
  args.sequences = 1;
  args.sequence = &sequence;
  args.q = q.data();
  args.out = attention.data();
  std::vector<float> workspace(DecodeAttentionWorkspaceFloats(args));
  args.workspace = workspace.data();
  DecodeAttention(args, decoder_->pool());
  decoder_->FinishRows(layer_, attention.data(), 1, floor_hidden_.data());
}

void Prefill::Logits(int64_t first, int rows, float* logits) {
  decoder_->Logits(hidden_.data() + first * decoder_->config().hidden, rows, logits);
}

void Prefill::FloorLogits(float* logits) { decoder_->Logits(floor_hidden_.data(), 1, logits); }

}  // namespace ripplekv
