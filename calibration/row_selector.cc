#include "calibration/row_selector.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <variant>

#include "kernels/key_scores.h"

namespace ripplekv {
namespace {

KeyScoresArgs ScoresArgs(const ModelConfig& config, KvType type, int64_t rows, int64_t end,
                         int queries) {
  KeyScoresArgs args;
  args.type = type;
  args.heads = config.heads;
  args.kv_heads = config.kv_heads;
  args.head_dim = config.head_dim;
  args.rows = rows;
  args.queries = queries;
  args.end = end;
  return args;
}

}  // namespace

RowSelector::RowSelector(const SelectorSpec& selector, int sinks, const ModelConfig& config,
                         KvType type, int64_t prompt_tokens, ThreadPool* pool)
    : selector_(selector),
      sinks_(sinks),
      config_(&config),
      type_(type),
      tokens_(prompt_tokens),
      window_(SelectorWindow(selector)),
      pool_(pool),
      positions_(VotingQueries(selector, prompt_tokens)),
      row_bytes_(static_cast<size_t>(config.heads * config.head_dim) * KvTypeBytes(type)) {}

size_t RowSelector::WorkBytes(const SelectorSpec& selector, const ModelConfig& config, KvType type,
                              int64_t prompt_tokens, int threads) {
  const int64_t scored = prompt_tokens - SelectorWindow(selector);
  const auto voting =
      static_cast<int>(std::min<int64_t>(MaxVotingQueries(selector), prompt_tokens));
  if (scored <= 0) return 0;
  int64_t floats = config.kv_heads * scored;
  if (voting > 0) {
    floats += config.heads * scored;
    floats +=
        KeyScoresWorkspaceFloats(ScoresArgs(config, type, prompt_tokens, scored, voting), threads);
  }
  if (std::holds_alternative<MixedAttention>(selector)) floats += config.kv_heads * scored;
  return static_cast<size_t>(floats) * sizeof(float) +
         static_cast<size_t>(int64_t{voting} * config.heads * config.head_dim) * KvTypeBytes(type);
}

void RowSelector::TakeQueries(int64_t begin, int n, const void* q) {
  queries_.resize(positions_.size() * row_bytes_);
  const auto* const from = static_cast<const std::byte*>(q);
  auto next = std::lower_bound(positions_.begin(), positions_.end(), begin);
  for (; next != positions_.end() && *next < begin + n; ++next) {
    std::memcpy(queries_.data() + static_cast<size_t>(next - positions_.begin()) * row_bytes_,
                from + static_cast<size_t>(*next - begin) * row_bytes_, row_bytes_);
  }
}

void RowSelector::Count(const void* k, int64_t kv_head_stride, int queries, bool normalised,
                        Pooling pooling, int kernel, std::vector<float>& out) {
  const auto last = std::min(static_cast<size_t>(queries), positions_.size());
  const size_t first = positions_.size() - last;
  KeyScoresArgs args = ScoresArgs(*config_, type_, tokens_, scored(), static_cast<int>(last));
  args.positions = positions_.data() + first;
  args.q = queries_.data() + first * row_bytes_;
  args.k = k;
  args.kv_head_stride = kv_head_stride;
  args.divisor = normalised ? KeyScoreDivisor::kCount : KeyScoreDivisor::kOne;
  args.pooling = pooling;
  args.kernel = kernel;
  head_scores_.resize(static_cast<size_t>(config_->heads * scored()));
  out.resize(static_cast<size_t>(config_->kv_heads * scored()));
  const int threads = pool_ == nullptr ? 1 : pool_->threads();
  workspace_.resize(static_cast<size_t>(KeyScoresWorkspaceFloats(args, threads)));
  args.scores = head_scores_.data();
  args.workspace = workspace_.data();
  KeyScores(args, pool_);
  MeanOverGroup(head_scores_.data(), config_->heads, config_->kv_heads, scored(), out.data());
}

void RowSelector::Score(const void* k, int64_t kv_head_stride) {
  const auto count_snapkv = [&](const SnapKv& snapkv) {
    Count(k, kv_head_stride, snapkv.window, true, snapkv.pooling, snapkv.kernel, scores_);
  };
  if (const auto* snapkv = std::get_if<SnapKv>(&selector_)) {
    count_snapkv(*snapkv);
  } else if (const auto* h2o = std::get_if<H2o>(&selector_)) {
    Count(k, kv_head_stride, h2o->queries, h2o->normalised, Pooling::kNone, 1, scores_);
  } else if (const auto* recent = std::get_if<RecentAttention>(&selector_)) {
    Count(k, kv_head_stride, recent->queries, true, recent->pooling, recent->kernel, scores_);
  } else if (const auto* mixed = std::get_if<MixedAttention>(&selector_)) {
    count_snapkv(mixed->snapkv);
    Count(k, kv_head_stride, mixed->queries, true, Pooling::kNone, 1, recent_scores_);
    for (int h = 0; h < config_->kv_heads; ++h) {
      const auto at = static_cast<size_t>(h * scored());
      const auto size = static_cast<size_t>(scored());
      const auto out = absl::MakeSpan(scores_).subspan(at, size);
      MixScores(out, absl::MakeConstSpan(recent_scores_).subspan(at, size), sinks_, mixed->weight,
                out);
    }
  }
}

absl::StatusOr<std::vector<int32_t>> RowSelector::Choose(int layer, int64_t budget) const {
  const auto* const random = std::get_if<RandomPositions>(&selector_);
  const bool recent_only = std::holds_alternative<StreamingLlm>(selector_);
  std::vector<int32_t> indices;
  indices.reserve(static_cast<size_t>(config_->kv_heads * budget));
  for (int h = 0; h < config_->kv_heads; ++h) {
    absl::StatusOr<std::vector<int32_t>> kept;
    if (recent_only) {
      kept = SelectRecent(tokens_, budget, sinks_, static_cast<int>(window_));
    } else {
      std::vector<float> drawn;
      if (random != nullptr) drawn = RandomScores(random->seed, layer, h, scored());
      const auto scores =
          random != nullptr ? absl::MakeConstSpan(drawn)
                            : absl::MakeConstSpan(scores_).subspan(
                                  static_cast<size_t>(h * scored()), static_cast<size_t>(scored()));
      kept = SelectPositions(scores, tokens_, budget, sinks_, static_cast<int>(window_));
    }
    if (!kept.ok()) return kept.status();
    indices.insert(indices.end(), kept->begin(), kept->end());
  }
  return indices;
}

}  // namespace ripplekv
