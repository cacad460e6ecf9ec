#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "kernels/panel_linear.h"
#include "kernels/thread_pool.h"
#include "model/weights.h"

namespace ripplekv {

/// The decoder's rows path (model/decoder.h): 1 to kMaxRows tokens of different sequences, by
/// kernels on the packed weights. A row's bits do not depend on the other rows or on threads. No
/// step allocates. Not thread-safe.
class DecoderRows {
 public:
  static constexpr int kMaxRows = kPanelLinearMaxRows;

  /// inv_freq [head_dim / 2]. `weights` and `pool` must outlive the object.
  DecoderRows(const Weights& weights, ActivationType activations, std::vector<float> inv_freq,
              ThreadPool* pool);

  /// q [rows, heads, d], k and v [rows, kv_heads, d], q and k rotated.
  void ProjectQkv(int layer, const float* hidden, int rows, const int32_t* positions, float* q,
                  float* k, float* v);
  /// hidden += Wo attention; hidden += FFN(hidden). attention [rows, heads, d].
  void Finish(int layer, const float* attention, int rows, float* hidden);
  /// logits [rows, vocab] = head(norm(hidden)), any number of rows.
  void Logits(const float* hidden, int rows, float* logits);

 private:
  bool Quantizes(const PanelMatrix& w) const;
  LinearInput Input(const float* x, int rows, int64_t cols, std::byte* quantized) const;
  /// norm_ = RmsNorm(x), as the input of products, quantised if `quantize`.
  LinearInput Normalize(const float* x, const std::vector<float>& weight, int rows, bool quantize);
  /// Quantises all of `input`.
  void Quantize(const LinearInput& input);
  void UpdateAngles(const int32_t* positions, int rows);
  /// Rotates columns [begin, end) of x [rows, width].
  void Rotate(float* x, int64_t width, int rows, int64_t begin, int64_t end) const;

  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  using Bytes = std::unique_ptr<std::byte, Free>;

  const Weights& weights_;
  const ActivationType activations_;
  const std::vector<float> inv_freq_;
  ThreadPool* const pool_;

  // Rotary angles of the rows' positions, by lane (kernels/rope.h), kept from layer to layer: a row
  // is [d + 16], the lanes of a head and again the first ones, so that 16 may be read from any
  // lane.
  std::vector<int32_t> angle_positions_;
  std::vector<float> cosines_, sines_;
  std::vector<float> pair_cosines_, pair_sines_;  // [d / 2], of one row

  std::vector<float> norm_;       // [kMaxRows, hidden]
  std::vector<float> gate_, up_;  // [kMaxRows, ffn]
  Bytes quantized_;               // of norm_ or attention
  Bytes quantized_ffn_;           // of gate_
};

}  // namespace ripplekv
