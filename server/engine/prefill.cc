#include "server/engine/prefill.h"

#include <algorithm>
#include <cassert>

#include "kernels/decode_attention.h"
#include "model/chunk_attention.h"

namespace ripplekv {

Prefill::Prefill(Decoder* decoder, PageArena* arena, SequenceCache* cache, const PrefillSpec& spec)
    : decoder_(decoder),
      arena_(arena),
      cache_(cache),
      spec_(spec),
      tokens_(static_cast<int64_t>(spec.tokens.size())) {
  const ModelConfig& c = decoder_->config();
  const size_t q_row = static_cast<size_t>(c.heads * c.head_dim) * KvTypeBytes(decoder_->kv_type());
  const size_t chunk = std::min(spec_.tokens.size(), static_cast<size_t>(Decoder::kChunkTokens));
  q_.resize(chunk * q_row);
  attention_.resize(chunk * q_row);
  if (spec_.keep == KeepRows::kCompact && Selects(*spec_.budgets, tokens_)) {
    selector_.emplace(spec_.selector, spec_.sinks, c, decoder_->kv_type(), tokens_,
                      decoder_->pool());
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

size_t Prefill::WorkBytes(const ModelConfig& c, KvType type, int64_t tokens) {
  const int64_t chunk = std::min<int64_t>(tokens, Decoder::kChunkTokens);
  return static_cast<size_t>(tokens * c.hidden) * sizeof(float) +
         static_cast<size_t>(2 * chunk * c.heads * c.head_dim) * KvTypeBytes(type);
}

bool Prefill::Selects(const LayerBudgets& budgets, int64_t tokens) {
  return std::any_of(budgets.layer.begin(), budgets.layer.end(),
                     [tokens](int64_t rows) { return rows < tokens; });
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
  if (selector_.has_value() && !keeps_all()) selector_->TakeQueries(begin, n, q_.data());
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
  if (keeps_all()) return cache_->StoreAll(layer_, k(), v(), stride(), tokens_);
  const int64_t budget = spec_.budgets->layer[static_cast<size_t>(layer_)];
  selector_->Score(k(), stride());
  const auto indices = selector_->Choose(layer_, budget);
  if (!indices.ok()) return indices.status();
  return cache_->Compact(layer_, k(), v(), stride(), *indices, budget);
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
