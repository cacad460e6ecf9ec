#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "calibration/policy/budgets.h"
#include "calibration/policy/selector.h"
#include "model/decoder.h"
#include "server/kv/page_arena.h"
#include "server/kv/sequence_cache.h"

namespace ripplekv {

/// A prompt on its way through the model, one layer a step: project, attend causally, score with
/// the window, keep b_l rows per KV head in the sequence's cache, drop the full K and V. So at most
/// one layer's full K and V exist at a time, in the arena's prefill layer; the residual stream
/// [prompt, hidden] lives here.
class Prefill {
 public:
  /// All arguments outlive the prefill. budgets: one b_l a layer, in [1, prompt length]; where b_l
  /// is the prompt's length every row is kept, bit for bit.
  Prefill(Decoder* decoder, PageArena* arena, SequenceCache* cache,
          absl::Span<const int32_t> prompt, const LayerBudgets& budgets,
          const SelectorSpec& selector, int sinks);

  bool done() const { return layer_ == decoder_->config().layers; }
  int layer() const { return layer_; }

  /// Runs the next layer. After an error the prefill is over.
  absl::Status Step();

  /// The logits [vocab] that follow the prompt, once done.
  void Logits(float* logits);

 private:
  absl::Status Attend(std::byte* k, std::byte* v);
  absl::Status Keep(const std::byte* k, const std::byte* v);
  absl::Status Select(const std::byte* k, int64_t budget, std::vector<int32_t>& indices);

  Decoder* decoder_;
  PageArena* arena_;
  SequenceCache* cache_;
  int64_t tokens_;
  const LayerBudgets& budgets_;
  const SnapKv snapkv_;
  int sinks_;
  int layer_ = 0;
  std::vector<float> hidden_;         // [tokens, hidden]
  std::vector<std::byte> q_;          // [chunk, heads, d]
  std::vector<std::byte> attention_;  // [chunk, heads, d]
  std::vector<std::byte> window_q_;   // [window, heads, d]
  std::vector<float> scores_;         // [heads, tokens - window]
  std::vector<float> group_scores_;   // [kv_heads, tokens - window]
};

}  // namespace ripplekv
