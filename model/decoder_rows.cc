#include "model/decoder_rows.h"

#include <algorithm>
#include <new>
#include <utility>

#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"

namespace ripplekv {
namespace {

// From this many rows on, work over rows (norms, quantisation) is worth a region of its own.
constexpr int kRowsForRegion = 3;
constexpr int64_t kRopeLanes = 16;

/// Panels a thread takes at a time: few enough for an even split, many enough for the matrix's
/// bytes to be read in runs.
int64_t Grain(int64_t panels, int threads) {
  return std::clamp<int64_t>(panels / (16 * threads), 1, 16);
}

/// The part of the concatenated range [begin, end) that falls on [offset, offset + n), relative to
/// offset; f(begin, end) if it is not empty.
template <typename F>
void Intersect(int64_t begin, int64_t end, int64_t offset, int64_t n, const F& f) {
  const int64_t b = std::max(begin - offset, int64_t{0});
  const int64_t e = std::min(end - offset, n);
  if (b < e) f(b, e);
}

int64_t ColumnsEnd(const PanelMatrix& w, int64_t panel_end) {
  return std::min(panel_end * kPanelRows, w.rows);
}

std::byte* AllocateQuantized(int64_t cols) {
  const auto bytes = static_cast<size_t>(quantized_input_bytes(DecoderRows::kMaxRows, cols));
  void* p = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (p == nullptr) throw std::bad_alloc();
  return static_cast<std::byte*>(p);
}

}  // namespace

DecoderRows::DecoderRows(const Weights& weights, ActivationType activations,
                         std::vector<float> inv_freq, ThreadPool* pool)
    : weights_(weights),
      activations_(activations),
      inv_freq_(std::move(inv_freq)),
      pool_(pool),
      angle_positions_(kMaxRows, -1),
      pair_cosines_(inv_freq_.size()),
      pair_sines_(inv_freq_.size()) {
  const ModelConfig& c = weights.config();
  const int64_t q_width = int64_t{c.heads} * c.head_dim;
  cosines_.resize(kMaxRows * static_cast<size_t>(c.head_dim + kRopeLanes));
  sines_.resize(cosines_.size());
  norm_.resize(kMaxRows * static_cast<size_t>(c.hidden));
  gate_.resize(kMaxRows * static_cast<size_t>(c.ffn));
  up_.resize(gate_.size());
  quantized_.reset(AllocateQuantized(std::max<int64_t>(c.hidden, q_width)));
  quantized_ffn_.reset(AllocateQuantized(c.ffn));
}

bool DecoderRows::Quantizes(const PanelMatrix& w) const {
  return activations_ == ActivationType::kInt16 && block_elements(w.type) > 1;
}

LinearInput DecoderRows::Input(const float* x, int rows, int64_t cols, std::byte* quantized) const {
  return {.x = x,
          .x_stride = cols,
          .m = rows,
          .cols = cols,
          .type = activations_,
          .quantized = quantized};
}

LinearInput DecoderRows::Normalize(const float* x, const std::vector<float>& weight, int rows,
                                   bool quantize) {
  const ModelConfig& c = weights_.config();
  const LinearInput input = Input(norm_.data(), rows, c.hidden, quantized_.get());
  pool_->ParallelFor(rows, rows < kRowsForRegion ? rows : 1, [&](int64_t begin, int64_t end) {
    RmsNorm(x, weight.data(), c.hidden, static_cast<float>(c.rms_epsilon), norm_.data(), begin,
            end);
    if (quantize) {
      QuantizeInput(input, static_cast<int>(begin), static_cast<int>(end), 0,
                    c.hidden / kPanelGroup);
    }
  });
  return input;
}

void DecoderRows::Quantize(const LinearInput& input) {
  pool_->ParallelFor(input.m, input.m < kRowsForRegion ? input.m : 1,
                     [&](int64_t begin, int64_t end) {
                       QuantizeInput(input, static_cast<int>(begin), static_cast<int>(end), 0,
                                     input.cols / kPanelGroup);
                     });
}

void DecoderRows::UpdateAngles(const int32_t* positions, int rows) {
  const int64_t d = weights_.config().head_dim;
  for (int r = 0; r < rows; ++r) {
    int32_t& position = angle_positions_[static_cast<size_t>(r)];
    if (position == positions[r]) continue;
    position = positions[r];
    RopeAngles(position, inv_freq_.data(), static_cast<int>(d / 2), pair_cosines_.data(),
               pair_sines_.data());
    float* cosines = cosines_.data() + r * (d + kRopeLanes);
    float* sines = sines_.data() + r * (d + kRopeLanes);
    for (int64_t i = 0; i < d + kRopeLanes; ++i) {
      const auto pair = static_cast<size_t>(i % d / 2);
      cosines[i] = pair_cosines_[pair];
      sines[i] = i % 2 == 0 ? -pair_sines_[pair] : pair_sines_[pair];
    }
  }
}

void DecoderRows::Rotate(float* x, int64_t width, int rows, int64_t begin, int64_t end) const {
  const int64_t d = weights_.config().head_dim;
  for (int64_t r = 0; r < rows; ++r) {
    const float* cosines = cosines_.data() + r * (d + kRopeLanes);
    const float* sines = sines_.data() + r * (d + kRopeLanes);
    RopeLanes(x + r * width + begin, end - begin, begin % d, d, cosines, sines);
  }
}

void DecoderRows::ProjectQkv(int layer, const float* hidden, int rows, const int32_t* positions,
                             float* q, float* k, float* v) {
  const LayerWeights& w = weights_.layer(layer);
  UpdateAngles(positions, rows);
  const LinearInput input = Normalize(hidden, w.attention_norm, rows,
                                      Quantizes(w.wq) || Quantizes(w.wk) || Quantizes(w.wv));
  const int64_t q_panels = w.wq.panels(), k_panels = w.wk.panels(), v_panels = w.wv.panels();
  const int64_t panels = q_panels + k_panels + v_panels;
  pool_->ParallelFor(panels, Grain(panels, pool_->threads()), [&](int64_t begin, int64_t end) {
    Intersect(begin, end, 0, q_panels, [&](int64_t b, int64_t e) {
      PanelLinear(w.wq, input, q, w.wq.rows, false, b, e);
      Rotate(q, w.wq.rows, rows, b * kPanelRows, ColumnsEnd(w.wq, e));
    });
    Intersect(begin, end, q_panels, k_panels, [&](int64_t b, int64_t e) {
      PanelLinear(w.wk, input, k, w.wk.rows, false, b, e);
      Rotate(k, w.wk.rows, rows, b * kPanelRows, ColumnsEnd(w.wk, e));
    });
    Intersect(begin, end, q_panels + k_panels, v_panels,
              [&](int64_t b, int64_t e) { PanelLinear(w.wv, input, v, w.wv.rows, false, b, e); });
  });
}

void DecoderRows::Finish(int layer, const float* attention, int rows, float* hidden) {
  const LayerWeights& w = weights_.layer(layer);
  const int threads = pool_->threads();
  const LinearInput attended = Input(attention, rows, w.wo.cols, quantized_.get());
  if (Quantizes(w.wo)) Quantize(attended);
  pool_->ParallelFor(w.wo.panels(), Grain(w.wo.panels(), threads), [&](int64_t b, int64_t e) {
    PanelLinear(w.wo, attended, hidden, w.wo.rows, true, b, e);
  });

  const LinearInput normed =
      Normalize(hidden, w.ffn_norm, rows, Quantizes(w.w_gate) || Quantizes(w.w_up));
  const int64_t ffn = w.w_down.cols;
  const LinearInput activated = Input(gate_.data(), rows, ffn, quantized_ffn_.get());
  const bool quantize = Quantizes(w.w_down);
  // In pairs of panels: the 32 columns of a group of `activated`.
  const int64_t groups = w.w_down.groups();
  pool_->ParallelFor(groups, Grain(groups, threads), [&](int64_t begin, int64_t end) {
    const int64_t panel_end = std::min(2 * end, w.w_gate.panels());
    PanelLinear(w.w_gate, normed, gate_.data(), ffn, false, 2 * begin, panel_end);
    PanelLinear(w.w_up, normed, up_.data(), ffn, false, 2 * begin, panel_end);
    const int64_t column = begin * kPanelGroup;
    const int64_t columns = ColumnsEnd(w.w_gate, panel_end) - column;
    for (int64_t r = 0; r < rows; ++r) {
      float* gate = gate_.data() + r * ffn + column;
      SwiGlu(gate, up_.data() + r * ffn + column, columns, gate);
    }
    if (quantize) QuantizeInput(activated, 0, rows, begin, end);
  });
  pool_->ParallelFor(w.w_down.panels(), Grain(w.w_down.panels(), threads),
                     [&](int64_t b, int64_t e) {
                       PanelLinear(w.w_down, activated, hidden, w.w_down.rows, true, b, e);
                     });
}

void DecoderRows::Logits(const float* hidden, int rows, float* logits) {
  const ModelConfig& c = weights_.config();
  const PanelMatrix& head = weights_.head();
  for (int begin = 0; begin < rows; begin += kMaxRows) {
    const LinearInput input =
        Normalize(hidden + static_cast<int64_t>(begin) * c.hidden, weights_.final_norm(),
                  std::min(kMaxRows, rows - begin), Quantizes(head));
    float* y = logits + static_cast<int64_t>(begin) * c.vocab;
    pool_->ParallelFor(
        head.panels(), Grain(head.panels(), pool_->threads()),
        [&](int64_t b, int64_t e) { PanelLinear(head, input, y, head.rows, false, b, e); });
  }
}

}  // namespace ripplekv
