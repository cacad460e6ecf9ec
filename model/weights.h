#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/panel_matrix.h"
#include "model/gguf.h"
#include "model/model_config.h"

namespace ripplekv {

/// One transformer block. Matrices are [outputs, inputs] as in the checkpoint (q and k rows in the
/// order that rotary embedding by adjacent pairs expects, which is how GGUF stores them).
struct LayerWeights {
  PanelMatrix wq, wk, wv, wo;  // [heads*d, hidden], [kv_heads*d, hidden] x2, [hidden, heads*d]
  PanelMatrix w_gate, w_up, w_down;   // [ffn, hidden] x2, [hidden, ffn]
  std::vector<float> attention_norm;  // [hidden]
  std::vector<float> ffn_norm;        // [hidden]
};

/// A model's weights in the checkpoint's own precision, repacked out of the file once and kept
/// once.
class Weights {
 public:
  /// Repacks every tensor that `config` needs. The file may be closed, replaced or deleted
  /// afterwards.
  static absl::StatusOr<std::shared_ptr<const Weights>> Load(const GgufFile& file,
                                                             const ModelConfig& config);

  const ModelConfig& config() const { return config_; }
  const LayerWeights& layer(int l) const { return layers_[static_cast<size_t>(l)]; }
  const PanelMatrix& embedding() const { return embedding_; }  // [vocab, hidden]
  const PanelMatrix& head() const { return head_; }  // [vocab, hidden]; the embedding when tied
  const std::vector<float>& final_norm() const { return final_norm_; }
  /// Per pair of lanes, the divisor of its rotary frequency ([head_dim / 2]; empty: all 1).
  const std::vector<float>& rope_factors() const { return rope_factors_; }
  /// Bytes held.
  size_t size_bytes() const { return size_bytes_; }

 private:
  Weights() = default;

  struct AlignedFree {
    void operator()(std::byte* p) const;
  };
  ModelConfig config_;
  std::unique_ptr<std::byte, AlignedFree> storage_;
  size_t size_bytes_ = 0;
  std::vector<LayerWeights> layers_;
  PanelMatrix embedding_;
  PanelMatrix head_;
  std::vector<float> final_norm_;
  std::vector<float> rope_factors_;
};

}  // namespace ripplekv
