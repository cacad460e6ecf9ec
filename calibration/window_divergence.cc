#include "calibration/window_divergence.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/kl_divergence.h"
#include "kernels/thread_pool.h"

namespace ripplekv {

WindowDivergence::WindowDivergence(Decoder* decoder, int window_tokens) : decoder_(decoder) {
  const size_t logits = static_cast<size_t>(std::min(kTileRows, window_tokens)) *
                        static_cast<size_t>(decoder_->config().vocab);
  p_log_probs_.resize(logits);
  q_logits_.resize(logits);
}

void WindowDivergence::TakeClean(const float* hidden, int rows) {
  const int64_t vocab = decoder_->config().vocab;
  float* const p = p_log_probs_.data();
  decoder_->ChunkLogits(hidden, rows, p);
  decoder_->pool()->ParallelFor(rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) LogSoftmax(p + r * vocab, vocab, p + r * vocab);
  });
}

void WindowDivergence::Compare(const float* hidden, int rows, double* kl) {
  const int64_t vocab = decoder_->config().vocab;
  const float* const p = p_log_probs_.data();
  float* const q = q_logits_.data();
  decoder_->ChunkLogits(hidden, rows, q);
  decoder_->pool()->ParallelFor(rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      LogSoftmax(q + r * vocab, vocab, q + r * vocab);
      kl[r] = KlDivergence(p + r * vocab, q + r * vocab, vocab);
    }
  });
}

double MeanDivergence(const double* kl, int window_tokens) {
  double sum = 0;
  for (int t = 0; t < window_tokens; ++t) sum += kl[t];
  if (!std::isfinite(sum)) return std::numeric_limits<double>::quiet_NaN();
  return std::max(0.0, sum / window_tokens);
}

}  // namespace ripplekv
