#pragma once

#include <cstdint>
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
  explicit DecodeStep(Decoder* decoder) : decoder_(decoder) {}

  /// logits: [rows, vocab]. 1 to Decoder::kMaxRows rows whose caches have one layout.
  /// RESOURCE_EXHAUSTED, with nothing changed, where a cache has no room for its row.
  absl::Status Run(absl::Span<const DecodeRow> rows, float* logits);

 private:
  Decoder* decoder_;
  std::vector<int32_t> positions_;
  std::vector<float> hidden_, q_, k_, v_, attention_, workspace_;
  std::vector<PagedSequence> sequences_;
};

}  // namespace ripplekv
