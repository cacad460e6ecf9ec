#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "calibration/policy/selector.h"
#include "kernels/kv_type.h"
#include "kernels/thread_pool.h"
#include "model/model_config.h"

namespace ripplekv {

/// Chooses the rows that each layer keeps of one prompt: collects the queries that vote as a
/// layer's chunks pass, and counts their attention once the layer's keys are complete. Which
/// queries vote depends on the prompt's length alone, and sums have one order: neither chunks nor
/// threads matter.
class RowSelector {
 public:
  /// `type`: of queries and keys. `config` and `pool` outlive the selector.
  RowSelector(const SelectorSpec& selector, int sinks, const ModelConfig& config, KvType type,
              int64_t prompt_tokens, ThreadPool* pool);

  /// Bytes that it holds at most.
  static size_t WorkBytes(const SelectorSpec& selector, const ModelConfig& config, KvType type,
                          int64_t prompt_tokens, int threads);

  /// The next layer's queries of tokens begin ... begin + n - 1: [n, heads, d].
  void TakeQueries(int64_t begin, int n, const void* q);

  /// Scores the positions of the layer whose queries were taken. Key of position u and KV head h at
  /// k + (h * kv_head_stride + u * d) elements.
  void Score(const void* k, int64_t kv_head_stride);

  /// Of the layer that was scored: [kv_heads, budget], each head's ascending. budget: sinks +
  /// window to prompt_tokens - 1.
  absl::StatusOr<std::vector<int32_t>> Choose(int layer, int64_t budget) const;

 private:
  // Positions that are scored: all before the window.
  int64_t scored() const { return tokens_ - window_; }
  // Mean scores of each KV head [kv_heads, scored] from the last `queries` of those that vote.
  void Count(const void* k, int64_t kv_head_stride, int queries, bool normalised, Pooling pooling,
             int kernel, std::vector<float>& out);

  SelectorSpec selector_;
  int sinks_;
  const ModelConfig* config_;
  KvType type_;
  int64_t tokens_;
  int64_t window_;
  ThreadPool* pool_;
  std::vector<int32_t> positions_;    // of the queries that vote
  size_t row_bytes_;                  // of one position's queries
  std::vector<std::byte> queries_;    // [voting, heads, d]
  std::vector<float> head_scores_;    // [heads, scored]
  std::vector<float> scores_;         // [kv_heads, scored]
  std::vector<float> recent_scores_;  // [kv_heads, scored], MixedAttention's
  std::vector<float> workspace_;      // KeyScores'
};

}  // namespace ripplekv
