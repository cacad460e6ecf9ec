#include "model/decoder_chunks.h"

#include <algorithm>
#include <utility>

#include "kernels/prefill_linear.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"

namespace ripplekv {
namespace {

constexpr int64_t kHeadPanels = 32;
constexpr int64_t kRopeGrain = 256;  // positions
/// Tokens of a piece of work: a few, lest threads wait for one another, and fewer where many
/// threads share a matrix. Whole tiles of the kernel.
constexpr int kTokensOfFewThreads = 132;
constexpr int kTokensOfManyThreads = 60;
constexpr int kFewThreads = 4;
constexpr int kNormTokens = 33;

}  // namespace

bool DecoderChunks::Supported(const ModelConfig& c) {
  const auto fits = [](int64_t rows) { return rows % kPrefillLinearRows == 0; };
  return fits(c.head_dim) && fits(c.hidden) && fits(c.ffn);
}

DecoderChunks::DecoderChunks(const Weights& weights, std::vector<float> inv_freq, int max_tokens,
                             ThreadPool* pool)
    : weights_(weights), config_(weights.config()), inv_freq_(std::move(inv_freq)), pool_(pool) {
  const LayerWeights& w = weights.layer(0);
  const std::pair<Matrix*, const PanelMatrix*> matrices[] = {
      {&wq_, &w.wq},         {&wk_, &w.wk},     {&wv_, &w.wv},        {&wo_, &w.wo},
      {&w_gate_, &w.w_gate}, {&w_up_, &w.w_up}, {&w_down_, &w.w_down}};
  // Whole cache lines: rows are a multiple of kPrefillLinearRows and columns even.
  int64_t elements = int64_t{max_tokens} * (config_.hidden + config_.ffn);
  for (const auto& [matrix, from] : matrices) elements += from->rows * from->cols;
  storage_.resize(static_cast<size_t>(elements));
  uint16_t* next = storage_.data();
  for (const auto& [matrix, from] : matrices) {
    *matrix = {next, from->rows, from->cols};
    next += from->rows * from->cols;
  }
  x_ = next;
  activated_ = x_ + int64_t{max_tokens} * config_.hidden;
}

/// f(first token, tokens) on pieces that cover all tokens.
template <typename F>
void DecoderChunks::ForPieces(int tokens, const F& f) {
  const int piece = pool_->threads() <= kFewThreads ? kTokensOfFewThreads : kTokensOfManyThreads;
  for (int first = 0; first < tokens; first += piece) f(first, std::min(piece, tokens - first));
}

/// f(first panel, last panel) on pairs that cover all panels.
template <typename F>
int DecoderChunks::AddPanels(StagedLoops* loops, int needs, int64_t panels, const F& f) {
  return loops->Add((panels + 1) / 2, needs,
                    [panels, f](int64_t pair) { f(2 * pair, std::min(2 * pair + 2, panels)); });
}

/// The pieces' tokens normalised to x_.
int DecoderChunks::AddNorm(StagedLoops* loops, int needs, const float* hidden,
                           const std::vector<float>& weight, int first, int count) {
  return loops->Add((count + kNormTokens - 1) / kNormTokens, needs, [=, this, &weight](int64_t i) {
    const int64_t begin = first + i * kNormTokens;
    RmsNormBf16(hidden, weight.data(), config_.hidden, static_cast<float>(config_.rms_epsilon), x_,
                begin, std::min<int64_t>(begin + kNormTokens, first + count));
  });
}

void DecoderChunks::ExpandLayer(int layer) {
  if (layer_ == layer) return;
  const LayerWeights& w = weights_.layer(layer);
  const std::pair<const PanelMatrix*, Matrix*> matrices[] = {
      {&w.wq, &wq_},         {&w.wk, &wk_},     {&w.wv, &wv_},        {&w.wo, &wo_},
      {&w.w_gate, &w_gate_}, {&w.w_up, &w_up_}, {&w.w_down, &w_down_}};
  int64_t panels = 0;
  for (const auto& [from, to] : matrices) panels += from->panels();
  pool_->ParallelFor(panels, 4, [&](int64_t begin, int64_t end) {
    int64_t offset = 0;  // of the matrix among all panels
    for (const auto& [from, to] : matrices) {
      const int64_t first = std::clamp<int64_t>(begin - offset, 0, from->panels());
      const int64_t last = std::clamp<int64_t>(end - offset, first, from->panels());
      ExpandPanelsBf16(*from, first, last, to->panels + first * kPrefillLinearRows * from->cols);
      offset += from->panels();
    }
  });
  layer_ = layer;
}

void DecoderChunks::Normalize(const float* hidden, const std::vector<float>& weight, int tokens) {
  pool_->ParallelFor(tokens, 16, [&](int64_t begin, int64_t end) {
    RmsNormBf16(hidden, weight.data(), config_.hidden, static_cast<float>(config_.rms_epsilon), x_,
                begin, end);
  });
}

void DecoderChunks::PrepareRope(int64_t positions) {
  const int64_t d = config_.head_dim;
  const int64_t first = static_cast<int64_t>(rope_.size()) / d;
  if (positions <= first) return;
  rope_.resize(static_cast<size_t>((positions + kRopeGrain - 1) / kRopeGrain * kRopeGrain * d));
  const int64_t last = static_cast<int64_t>(rope_.size()) / d;
  pool_->ParallelFor(last - first, 16, [&](int64_t begin, int64_t end) {
    for (int64_t p = first + begin; p < first + end; ++p) {
      float* const row = rope_.data() + p * d;
      RopeAngles(p, inv_freq_.data(), static_cast<int>(d / 2), row, row + d / 2);
    }
  });
}

void DecoderChunks::ProjectQkv(int layer, const float* hidden, int tokens, int64_t first_position,
                               uint16_t* q, uint16_t* k, uint16_t* v, int64_t kv_head_stride) {
  const int64_t d = config_.head_dim;
  PrepareRope(first_position + tokens);
  const float* const rope = rope_.data() + first_position * d;
  const PrefillHeads queries = {config_.head_dim, q, d, config_.heads * d, rope};
  const PrefillHeads keys = {config_.head_dim, k, kv_head_stride, d, rope};
  const PrefillHeads values = {config_.head_dim, v, kv_head_stride, d, nullptr};
  const int64_t panels = (wq_.rows + 2 * wk_.rows) / kPrefillLinearRows;
  StagedLoops loops;
  std::vector<int> norms;
  ForPieces(tokens, [&](int first, int count) {
    norms.push_back(AddNorm(&loops, StagedLoops::kNothing, hidden,
                            weights_.layer(layer).attention_norm, first, count));
  });
  auto norm = norms.begin();
  ForPieces(tokens, [&](int first, int count) {
    AddPanels(
        &loops, *norm++, panels, [=, this, &queries, &keys, &values](int64_t begin, int64_t end) {
          const PrefillLinearArgs args = {count, config_.hidden,
                                          x_ + int64_t{first} * config_.hidden};
          int64_t offset = 0;
          for (const auto& [w, target] :
               {std::pair{&wq_, &queries}, {&wk_, &keys}, {&wv_, &values}}) {
            const int64_t own = w->rows / kPrefillLinearRows;
            PrefillHeads heads = *target;
            heads.out += first * heads.token_stride;
            if (heads.rope != nullptr) heads.rope += first * d;
            PrefillLinearHeads(args, w->panels, heads, std::clamp<int64_t>(begin - offset, 0, own),
                               std::clamp<int64_t>(end - offset, 0, own));
            offset += own;
          }
        });
  });
  loops.Run(pool_);
}

void DecoderChunks::Finish(int layer, const uint16_t* attention, int tokens, float* hidden) {
  const int64_t width = config_.hidden;
  StagedLoops loops;
  const auto add = [&](int needs, const Matrix& w, const uint16_t* x, int first, int count) {
    return AddPanels(&loops, needs, w.rows / kPrefillLinearRows,
                     [=, &w](int64_t begin, int64_t end) {
                       PrefillLinearAdd({count, w.cols, x + first * w.cols}, w.panels,
                                        hidden + first * width, width, begin, end);
                     });
  };
  // While the last tiles of one piece of the tokens are at work, another piece's can be.
  std::vector<int> last;
  ForPieces(tokens, [&](int first, int count) {
    last.push_back(add(StagedLoops::kNothing, wo_, attention, first, count));
  });
  auto piece = last.begin();
  ForPieces(tokens, [&](int first, int count) {
    const int norm = AddNorm(&loops, *piece, hidden, weights_.layer(layer).ffn_norm, first, count);
    *piece++ = AddPanels(
        &loops, norm, w_gate_.rows / kPrefillLinearRows, [=, this](int64_t begin, int64_t end) {
          PrefillLinearSwiGlu({count, width, x_ + first * width}, w_gate_.panels, w_up_.panels,
                              activated_ + first * w_gate_.rows, w_gate_.rows, begin, end);
        });
  });
  piece = last.begin();
  ForPieces(tokens,
            [&](int first, int count) { add(*piece++, w_down_, activated_, first, count); });
  loops.Run(pool_);
}

void DecoderChunks::Logits(const float* hidden, int tokens, float* logits) {
  const PanelMatrix& head = weights_.head();
  Normalize(hidden, weights_.final_norm(), tokens);
  const PrefillLinearArgs args = {tokens, config_.hidden, x_};
  // Two panels are expanded at a time and used while they are in the cache.
  pool_->ParallelFor(head.panels(), kHeadPanels, [&](int64_t begin, int64_t end) {
    std::vector<uint16_t> panels(static_cast<size_t>(2 * kPrefillLinearRows * config_.hidden));
    for (int64_t i = begin; i < end; i += 2) {
      const int64_t n = std::min<int64_t>(2, end - i);
      ExpandPanelsBf16(head, i, i + n, panels.data());
      PrefillLinear(args, panels.data(), head.rows - i * kPrefillLinearRows,
                    logits + i * kPrefillLinearRows, head.rows, 0, n);
    }
  });
}

}  // namespace ripplekv
