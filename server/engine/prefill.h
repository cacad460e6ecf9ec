#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "calibration/policy/budgets.h"
#include "calibration/policy/selector.h"
#include "calibration/row_selector.h"
#include "kernels/large_vector.h"
#include "model/decoder.h"
#include "server/kv/page_arena.h"
#include "server/kv/sequence_cache.h"

namespace ripplekv {

/// What happens to the rows of the tokens that are pushed through the model.
enum class KeepRows {
  kCompact,  // b_l of them in each layer, as the selector chooses; into an empty cache
  kAll,      // all, after the rows that the cache holds already
  kNone,     // none: only the logits are wanted
};

struct PrefillSpec {
  absl::Span<const int32_t> tokens;  // outlives the prefill
  KeepRows keep = KeepRows::kCompact;
  int64_t first_position = 0;             // logical, of tokens[0]; the cache's rows lie before it
  const LayerBudgets* budgets = nullptr;  // kCompact; outlives the prefill. b_l in [1, tokens];
                                          // where it is the number of tokens, all rows are kept
  SelectorSpec selector = SnapKv{};       // kCompact
  int sinks = 0;                          // kCompact
  bool all_logits = false;                // of every token, not of the last one alone
  bool measure_floor = false;             // kCompact: FloorLogits() is wanted
  SequenceCache* full_cache = nullptr;    // kCompact: not null: takes all rows too; outlives it
};

/// Tokens on their way through the model, one slice a Step: in each layer first the chunks of
/// Decoder::kChunkTokens at fixed positions (project, attend causally to the cache's rows and the
/// tokens before), then the layer's end (score with the window, keep rows in the sequence's cache,
/// drop the full K and V). At most one layer's full K and V exist at a time, in the arena's prefill
/// layer, which is held from a layer's first slice to its last; the residual stream [tokens,
/// hidden] lives here from the first slice on. Results do not depend on what runs between the
/// slices.
class Prefill {
 public:
  /// Decoder, arena and cache outlive the prefill.
  Prefill(Decoder* decoder, PageArena* arena, SequenceCache* cache, const PrefillSpec& spec);

  /// Bytes that a prefill of so many tokens holds: residual stream and a chunk's queries. With
  /// kCompact also RowSelector::WorkBytes where it Selects.
  static size_t WorkBytes(const ModelConfig& config, KvType type, int64_t tokens);
  /// Whether a layer keeps fewer than all rows, so that kCompact has any to choose.
  static bool Selects(const LayerBudgets& budgets, int64_t tokens);
  /// Multiply-adds of one layer for `tokens` tokens over `base` rows: linear layers and attention.
  static int64_t LayerWork(const ModelConfig& config, int64_t tokens, int64_t base);

  bool done() const { return layer_ == decoder_->config().layers; }
  int layer() const { return layer_; }
  /// Between two slices of one layer: the arena's prefill layer is held.
  bool holds_layer() const { return full_.has_value(); }
  /// The next slice is a layer's end.
  bool ends_layer_next() const { return next_ == tokens_; }
  int64_t layer_work() const { return layer_work_; }
  int64_t remaining_work() const;

  /// Runs the next slice. After an error the prefill is over.
  absl::Status Step();

  /// Once done: the logits [vocab] that follow token i (all_logits, or the last one).
  void Logits(int64_t first, int rows, float* logits);
  void LastLogits(float* logits) { Logits(tokens_ - 1, 1, logits); }
  /// Once done: the logits [vocab] of the last token, queried again by the decode path's kernels
  /// over all of the prompt's rows: what its decode steps would give if nothing were dropped.
  void FloorLogits(float* logits);

  /// The highest that the caches' pages and the full layer were together.
  size_t peak_bytes() const { return peak_bytes_; }

 private:
  std::byte* k() const { return full_->data(); }
  std::byte* v() const { return full_->data() + full_->size_bytes() / 2; }
  int64_t rows() const { return base_ + tokens_; }  // of the full layer
  int64_t stride() const { return rows() * decoder_->config().head_dim; }

  void Embed();
  absl::Status StartLayer();
  absl::Status Chunk();
  absl::Status EndLayer();
  absl::Status Keep();
  void QueryFloor();
  // All rows of the layer at work are kept.
  bool keeps_all() const { return spec_.budgets->layer[static_cast<size_t>(layer_)] >= tokens_; }

  Decoder* decoder_;
  PageArena* arena_;
  SequenceCache* cache_;
  PrefillSpec spec_;
  std::optional<RowSelector> selector_;  // kCompact that Selects
  int64_t tokens_;
  int64_t base_ = 0;  // rows of the cache in the layer at work, before the tokens'
  int64_t layer_work_ = 1;
  int layer_ = 0;
  int64_t next_ = 0;  // first token of the next chunk; tokens_: the layer's end is next
  std::optional<PrefillLayer> full_;
  size_t peak_bytes_ = 0;
  LargeVector<float> hidden_;         // [tokens, hidden]
  std::vector<std::byte> q_;          // [chunk, heads, d]
  std::vector<std::byte> attention_;  // [chunk, heads, d]
  std::vector<float> floor_hidden_;   // [hidden]: the last token's, by the decode path
};

}  // namespace ripplekv
