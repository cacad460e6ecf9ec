#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/decode_attention.h"
#include "model/decoder.h"
#include "server/kv/sequence_cache.h"

namespace ripplekv {

/// One sequence's part of a decode step.
struct DecodeRow {
  int32_t token = 0;
  int32_t position = 0;            // logical
  SequenceCache* cache = nullptr;  // no cache twice in a step
  bool append = true;  // false: the token's row is in the cache already; it is only queried again
};

/// Runs decode steps and keeps their scratch. A row's logits have the same bits whatever rows run
/// beside it.
class DecodeStep {
 public:
  /// before_layer (may be empty) is called before each layer; what it throws fails the step.
  explicit DecodeStep(Decoder* decoder, std::function<void(int layer)> before_layer = {})
      : decoder_(decoder), before_layer_(std::move(before_layer)) {}

  /// logits: [rows, vocab]. 1 to Decoder::kMaxRows rows whose caches are of one arena; each may
  /// store each layer in types of its own. After an error, or an exception, the caches are as
  /// before: RESOURCE_EXHAUSTED where a cache has no room for its row. What the step measured is
  /// not committed yet (SequenceCache::CommitStep).
  absl::Status Run(absl::Span<const DecodeRow> rows, float* logits);

 private:
  absl::Status RunLayers(absl::Span<const DecodeRow> rows, float* logits);
  void Order(absl::Span<const DecodeRow> rows);
  void Attend(int layer);

  Decoder* decoder_;
  std::function<void(int layer)> before_layer_;
  std::vector<size_t> order_;    // row of the call, for each row at work
  std::vector<DecodeRow> rows_;  // at work: those that store alike lie side by side
  std::vector<int32_t> positions_;
  std::vector<float> hidden_, q_, k_, v_, attention_, workspace_, result_;
  std::vector<PagedSequence> sequences_;
};

}  // namespace ripplekv
