// The decoder's rows path: the kernels on packed weights.
#include <algorithm>
#include <vector>

#include "kernels/packed_linear.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"
#include "model/decoder.h"

namespace ripplekv {

void Decoder::Linear(const PackedMatrix& w, const float* x, int rows, float* y) {
  pool_->ParallelFor(w.rows, 16, [&](int64_t begin, int64_t end) {
    PackedLinear(w, x, w.cols, rows, y, w.rows, begin, end);
  });
}

void Decoder::ProjectQkvRows(int layer, const float* hidden, int rows, const int32_t* positions,
                             float* q, float* k, float* v) {
  const ModelConfig& c = config();
  const LayerWeights& w = weights_->layer(layer);
  const int64_t d = c.head_dim;
  RmsNorm(hidden, w.attention_norm.data(), c.hidden, static_cast<float>(c.rms_epsilon),
          norm_.data(), 0, rows);
  Linear(w.wq, norm_.data(), rows, q);
  Linear(w.wk, norm_.data(), rows, k);
  Linear(w.wv, norm_.data(), rows, v);
  std::vector<float> cosines(static_cast<size_t>(d / 2)), sines(static_cast<size_t>(d / 2));
  for (int r = 0; r < rows; ++r) {
    RopeAngles(positions[r], inv_freq_.data(), c.head_dim / 2, cosines.data(), sines.data());
    Rope(q + static_cast<int64_t>(r) * c.heads * d, c.heads, c.head_dim, cosines.data(),
         sines.data());
    Rope(k + static_cast<int64_t>(r) * c.kv_heads * d, c.kv_heads, c.head_dim, cosines.data(),
         sines.data());
  }
}

void Decoder::FinishRows(int layer, const float* attention, int rows, float* hidden) {
  const ModelConfig& c = config();
  const LayerWeights& w = weights_->layer(layer);
  Linear(w.wo, attention, rows, out_.data());
  for (int64_t i = 0; i < static_cast<int64_t>(rows) * c.hidden; ++i)
    hidden[i] += out_[static_cast<size_t>(i)];
  RmsNorm(hidden, w.ffn_norm.data(), c.hidden, static_cast<float>(c.rms_epsilon), norm_.data(), 0,
          rows);
  Linear(w.w_gate, norm_.data(), rows, gate_.data());
  Linear(w.w_up, norm_.data(), rows, up_.data());
  SwiGlu(gate_.data(), up_.data(), static_cast<int64_t>(rows) * c.ffn, gate_.data());
  Linear(w.w_down, gate_.data(), rows, out_.data());
  for (int64_t i = 0; i < static_cast<int64_t>(rows) * c.hidden; ++i)
    hidden[i] += out_[static_cast<size_t>(i)];
}

void Decoder::Logits(const float* hidden, int rows, float* logits) {
  const ModelConfig& c = config();
  for (int begin = 0; begin < rows; begin += kMaxRows) {
    const int n = std::min(kMaxRows, rows - begin);
    RmsNorm(hidden + static_cast<int64_t>(begin) * c.hidden, weights_->final_norm().data(),
            c.hidden, static_cast<float>(c.rms_epsilon), norm_.data(), 0, n);
    Linear(weights_->head(), norm_.data(), n, logits + static_cast<int64_t>(begin) * c.vocab);
  }
}

}  // namespace ripplekv
