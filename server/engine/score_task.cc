#include "server/engine/score_task.h"

#include <algorithm>
#include <utility>

#include "kernels/kl_divergence.h"
#include "server/engine/sampler.h"

namespace ripplekv {

ScoreTask::ScoreTask(int64_t id, const TaskResources& resources,
                     std::unique_ptr<QueuedRequest> request, TaskHoldings holdings)
    : Task(id, resources, std::move(request), std::move(holdings)) {
  result_.usage.context_tokens = context_tokens();
  result_.usage.prompt_tokens = request_->prompt_tokens();
  for (const auto& ids : score().continuations) later_work_ += ContinuationWork(ids);
  if (request_->prompt().empty()) return;  // over a context: the first slice goes on from it
  PrefillSpec spec = {.tokens = request_->prompt(), .first_position = context_tokens()};
  if (context_ != nullptr) {
    spec.keep = KeepRows::kAll;
  } else {
    spec.budgets = &request_->admission.budgets;
    spec.selector = request_->plan->selector();
    spec.sinks = request_->plan->sinks();
    if (referenced()) spec.full_cache = &*full_cache_;
  }
  StartPrefill(spec);
}

size_t ScoreTask::WorkBytes(const ModelConfig& config, bool reference) {
  // With a reference the first token's row over the compressed cache comes and goes before others.
  return static_cast<size_t>(config.vocab) * sizeof(float) * (Decoder::kMaxRows + 1) *
         (reference ? 2 : 1);
}

int64_t ScoreTask::LogitsWork(const ModelConfig& config, int64_t rows) {
  return rows * config.vocab * config.hidden;
}

int64_t ScoreTask::ContinuationWork(const std::vector<int32_t>& ids) const {
  const ModelConfig& c = resources_.decoder->config();
  const auto rows = static_cast<int64_t>(ids.size()) - 1;
  if (rows == 0) return 0;
  return passes() *
         (c.layers * Prefill::LayerWork(c, rows, request_->prompt_tokens()) + LogitsWork(c, rows));
}

int64_t ScoreTask::next_logits_work() const {
  const int64_t rows =
      in_prompt() ? 0 : static_cast<int64_t>(continuation().size()) - 1 - next_row_;
  return passes() *
         LogitsWork(resources_.decoder->config(), std::clamp<int64_t>(rows, 1, Decoder::kMaxRows));
}

SlicedTaskView ScoreTask::View() const {
  SlicedTaskView view;
  if (pushing()) {
    view = Task::View();
  } else {
    view = {.id = id_, .layer_work = next_logits_work()};
  }
  view.remaining_work += later_work_;
  if (!in_prompt()) {
    const ModelConfig& c = resources_.decoder->config();
    const auto rows = static_cast<int64_t>(continuation().size()) - 1;
    view.remaining_work += passes() * LogitsWork(c, rows - next_row_);
    if (referenced() && !full_pass_.has_value()) {
      view.remaining_work += c.layers * Prefill::LayerWork(c, rows, request_->prompt_tokens());
    }
  }
  view.remaining_work = std::max<int64_t>(1, view.remaining_work);
  return view;
}

StepRecord::Slice ScoreTask::NextSlice() const {
  return pushing() ? Task::NextSlice() : StepRecord::Slice::kLogits;
}

absl::Status ScoreTask::RunSlice() {
  if (in_prompt()) {
    return prefill_.has_value() ? Task::RunSlice() : PromptDone(context_->logits);
  }
  return prefill_->done() ? ScoreRows() : Task::RunSlice();
}

absl::Status ScoreTask::OnPrefilled() {
  if (!in_prompt()) {
    if (!referenced() || full_pass_.has_value()) return absl::OkStatus();  // its rows are next
    full_pass_ = std::move(prefill_);
    PushContinuation(&cache_);
    return absl::OkStatus();
  }
  std::vector<float> logits(static_cast<size_t>(vocab()));
  prefill_->LastLogits(logits.data());
  return PromptDone(std::move(logits));
}

absl::Status ScoreTask::PromptDone(std::vector<float> logits) {
  prefill_.reset();
  prompt_done_ = true;
  prompt_logits_ = std::move(logits);
  auto row = MakeRow(prompt_logits_);
  if (!row.ok()) return row.status();
  prompt_row_ = *row;
  if (referenced()) {
    if (absl::Status status = CompareFirst(); !status.ok()) return status;
  }
  prefilled_ = Clock::now();
  timings_.prefill_seconds = Seconds(prefilled_ - started_);
  timings_.first_token_seconds = Seconds(prefilled_ - request_->submitted);
  result_.cache = NotePrefilled();
  return StartContinuation();
}

absl::Status ScoreTask::CompareFirst() {
  DecodeRow row = {.token = request_->prompt().back(),
                   .position = static_cast<int32_t>(request_->prompt_tokens()) - 1,
                   .cache = &*full_cache_,
                   .append = false};
  first_full_logits_.resize(static_cast<size_t>(vocab()));
  if (absl::Status status = resources_.decode->Run({&row, 1}, first_full_logits_.data());
      !status.ok()) {
    return status;
  }
  std::vector<float> logits(static_cast<size_t>(vocab()));
  row.cache = &cache_;
  if (absl::Status status = resources_.decode->Run({&row, 1}, logits.data()); !status.ok()) {
    return status;
  }
  auto compressed = MakeRow(logits);
  if (!compressed.ok()) return compressed.status();
  auto comparison = Compare(first_full_logits_, *compressed);
  if (!comparison.ok()) return comparison.status();
  first_compared_ = *comparison;
  return absl::OkStatus();
}

absl::Status ScoreTask::StartContinuation() {
  for (; current_ < score().continuations.size(); EndContinuation()) {
    result_.continuations.emplace_back();
    later_work_ -= ContinuationWork(continuation());
    Score(prompt_row_, first_compared_, 0);
    next_row_ = 0;
    if (continuation().size() == 1) continue;
    PushContinuation(referenced() ? &*full_cache_ : &cache_);
    return absl::OkStatus();
  }
  timings_.decode_seconds = Seconds(Clock::now() - prefilled_);
  done_ = true;
  return absl::OkStatus();
}

void ScoreTask::PushContinuation(SequenceCache* cache) {
  // The last token's own successor is of no interest.
  StartPrefill({.tokens = absl::MakeConstSpan(continuation()).first(continuation().size() - 1),
                .keep = KeepRows::kNone,
                .first_position = context_tokens() + request_->prompt_tokens(),
                .all_logits = true},
               cache);
}

absl::Status ScoreTask::ScoreRows() {
  const auto rows = static_cast<int64_t>(continuation().size()) - 1;
  const int n = static_cast<int>(std::min<int64_t>(Decoder::kMaxRows, rows - next_row_));
  const auto width = static_cast<size_t>(vocab());
  logits_.resize(static_cast<size_t>(n) * width);
  prefill_->Logits(next_row_, n, logits_.data());
  if (referenced()) {
    full_logits_.resize(logits_.size());
    full_pass_->Logits(next_row_, n, full_logits_.data());
  }
  for (int i = 0; i < n; ++i, ++next_row_) {
    const size_t at = static_cast<size_t>(i) * width;
    auto row = MakeRow(absl::MakeConstSpan(logits_).subspan(at, width));
    if (!row.ok()) return row.status();
    std::optional<Comparison> compared;
    if (referenced()) {
      auto comparison = Compare(absl::MakeConstSpan(full_logits_).subspan(at, width), *row);
      if (!comparison.ok()) return comparison.status();
      compared = *comparison;
    }
    Score(*row, compared, static_cast<size_t>(next_row_) + 1);
  }
  if (next_row_ < rows) return absl::OkStatus();
  prefill_.reset();
  full_pass_.reset();
  EndContinuation();
  return StartContinuation();
}

absl::StatusOr<ScoreTask::Row> ScoreTask::MakeRow(absl::Span<const float> logits) {
  if (absl::Status status = CheckFinite(logits); !status.ok()) return status;
  const auto best = std::max_element(logits.begin(), logits.end());  // the first: the lowest id
  return Row{.logits = logits,
             .log_sum = LogSumExp(logits),
             .best = static_cast<int32_t>(best - logits.begin())};
}

absl::StatusOr<ScoreTask::Comparison> ScoreTask::Compare(absl::Span<const float> full,
                                                         const Row& compressed) {
  auto row = MakeRow(full);
  if (!row.ok()) return row.status();
  const auto n = static_cast<int64_t>(full.size());
  // A divergence of nothing may come out a little below zero by rounding.
  return Comparison{
      .full = *row,
      .kl = std::max(0.0, KlDivergenceOfLogits(full.data(), compressed.logits.data(), n)),
      .top1_agrees = row->best == compressed.best};
}

void ScoreTask::Score(const Row& row, const std::optional<Comparison>& comparison, size_t token) {
  const int32_t id = continuation()[token];
  TokenScore score = {.token = id, .logprob = row.Logprob(id), .greedy = row.best == id};
  if (comparison.has_value()) {
    score.reference = {.kl = comparison->kl,
                       .top1_agrees = comparison->top1_agrees,
                       .logprob = comparison->full.Logprob(id)};
  }
  result_.continuations.back().tokens.push_back(score);
}

void ScoreTask::EndContinuation() {
  ContinuationScore& score = result_.continuations.back();
  score.greedy = true;
  double kl = 0;
  for (const TokenScore& token : score.tokens) {
    score.logprob += double{token.logprob};
    score.greedy = score.greedy && token.greedy;
    if (token.reference.has_value()) kl += token.reference->kl;
  }
  if (referenced()) score.mean_kl = kl / static_cast<double>(score.tokens.size());
  result_.usage.completion_tokens += static_cast<int64_t>(score.tokens.size());
  ++current_;
}

void ScoreTask::Complete() {
  result_.timings = timings_;
  work_item().sink->OnComplete(std::move(result_));
}

}  // namespace ripplekv
