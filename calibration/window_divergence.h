#pragma once

#include <cstddef>
#include <vector>

#include "model/decoder.h"

namespace ripplekv {

/// Compares evaluation windows with the clean one, a tile of their rows at a time.
class WindowDivergence {
 public:
  /// Window rows whose logits are held at once.
  static constexpr int kTileRows = 64;

  /// The decoder outlives this object.
  WindowDivergence(Decoder* decoder, int window_tokens);

  /// The clean rows [rows, hidden] behind the last layer, 1 to kTileRows of them.
  void TakeClean(const float* hidden, int rows);

  /// kl[r] = KL(P_r || Q_r), nats, fp32 over the full vocabulary: P of the clean row, Q of the same
  /// row of another window.
  void Compare(const float* hidden, int rows, double* kl);

  size_t bytes() const { return (p_log_probs_.size() + q_logits_.size()) * sizeof(float); }

 private:
  Decoder* const decoder_;
  std::vector<float> p_log_probs_;  // [tile, vocab]
  std::vector<float> q_logits_;     // [tile, vocab]
};

/// The mean of a window's divergences, not below 0 (rounding may take one near it there): NaN where
/// one of them is not finite.
double MeanDivergence(const double* kl, int window_tokens);

}  // namespace ripplekv
