#pragma once

#include <cstdint>
#include <vector>

#include "kernels/large_vector.h"
#include "kernels/staged_loops.h"
#include "kernels/thread_pool.h"
#include "model/weights.h"

namespace ripplekv {

/// The decoder's chunk path in bf16 by the kernels of kernels/prefill_linear.h, on one layer's
/// weights expanded to bf16. A token's bits depend on the token and its position only: not on the
/// other tokens of the chunk or the threads. See Decoder for what the calls mean.
class DecoderChunks {
 public:
  /// Whether the model's shape fits the kernels.
  static bool Supported(const ModelConfig& config);

  /// Weights and pool outlive it; inv_freq [head_dim / 2] are the rotary frequencies.
  DecoderChunks(const Weights& weights, std::vector<float> inv_freq, int max_tokens,
                ThreadPool* pool);

  void ExpandLayer(int layer);
  void ProjectQkv(int layer, const float* hidden, int tokens, int64_t first_position, uint16_t* q,
                  uint16_t* k, uint16_t* v, int64_t kv_head_stride);
  void Finish(int layer, const uint16_t* attention, int tokens, float* hidden);
  void Logits(const float* hidden, int tokens, float* logits);

 private:
  /// A matrix of the expanded layer (kernels/panel_matrix.h, ExpandPanelsBf16).
  struct Matrix {
    uint16_t* panels = nullptr;
    int64_t rows, cols;
  };

  void Normalize(const float* hidden, const std::vector<float>& weight, int tokens);
  void PrepareRope(int64_t positions);
  template <typename F>
  void ForPieces(int tokens, const F& f);
  template <typename F>
  int AddPanels(StagedLoops* loops, int needs, int64_t panels, const F& f);
  int AddNorm(StagedLoops* loops, int needs, const float* hidden, const std::vector<float>& weight,
              int first, int count);

  const Weights& weights_;
  const ModelConfig& config_;
  const std::vector<float> inv_freq_;
  ThreadPool* const pool_;
  int layer_ = -1;
  Matrix wq_, wk_, wv_, wo_, w_gate_, w_up_, w_down_;
  uint16_t* x_ = nullptr;          // [tokens, hidden]
  uint16_t* activated_ = nullptr;  // [tokens, ffn]
  LargeVector<uint16_t> storage_;  // of the matrices and of those two
  LargeVector<float> rope_;        // [positions so far, head_dim]: cosines, sines
};

}  // namespace ripplekv
