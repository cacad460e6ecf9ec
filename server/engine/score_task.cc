#include "server/engine/score_task.h"

#include <algorithm>
#include <utility>

#include "server/engine/sampler.h"

namespace ripplekv {

ScoreTask::ScoreTask(int64_t id, const TaskResources& resources,
                     std::unique_ptr<QueuedRequest> request, TaskHoldings holdings)
    : Task(id, resources, std::move(request), std::move(holdings)) {
  result_.usage.context_tokens = context_tokens();
  result_.usage.prompt_tokens = request_->prompt_tokens();
  if (request_->prompt().empty()) return;  // over a context: the first slice goes on from it
  PrefillSpec spec = {.tokens = request_->prompt(), .first_position = context_tokens()};
  if (context_ != nullptr) {
    spec.keep = KeepRows::kAll;
  } else {
    spec.budgets = &request_->admission.budgets;
    spec.selector = request_->plan->selector();
    spec.sinks = request_->plan->sinks();
  }
  StartPrefill(spec);
}

size_t ScoreTask::WorkBytes(const ModelConfig& config) {
  return static_cast<size_t>(config.vocab) * sizeof(float) * (Decoder::kMaxRows + 1);
}

SlicedTaskView ScoreTask::View() const {
  if (prefill_.has_value() && !prefill_->done()) return Task::View();
  return {.id = id_, .remaining_work = 1, .layer_work = 1, .holds_layer = false};
}

StepRecord::Slice ScoreTask::NextSlice() const {
  if (prefill_.has_value() && !prefill_->done()) return Task::NextSlice();
  return StepRecord::Slice::kLogits;
}

absl::Status ScoreTask::RunSlice() {
  if (in_prompt()) {
    return prefill_.has_value() ? Task::RunSlice() : PromptDone(context_->logits);
  }
  return prefill_->done() ? ScoreRows() : Task::RunSlice();
}

absl::Status ScoreTask::OnPrefilled() {
  if (!in_prompt()) return absl::OkStatus();  // a continuation: its rows are scored next
  std::vector<float> logits(static_cast<size_t>(vocab()));
  prefill_->LastLogits(logits.data());
  return PromptDone(std::move(logits));
}

absl::Status ScoreTask::PromptDone(std::vector<float> logits) {
  prefill_.reset();
  prompt_done_ = true;
  prompt_logits_ = std::move(logits);
  prefilled_ = Clock::now();
  timings_.prefill_seconds = Seconds(prefilled_ - started_);
  timings_.first_token_seconds = Seconds(prefilled_ - request_->submitted);
  result_.cache = NotePrefilled();
  return StartContinuation();
}

absl::Status ScoreTask::StartContinuation() {
  for (; current_ < score().continuations.size(); EndContinuation()) {
    result_.continuations.emplace_back();
    if (absl::Status status = Score(prompt_logits_, 0); !status.ok()) return status;
    if (continuation().size() == 1) continue;
    // The last token's own successor is of no interest.
    StartPrefill({.tokens = absl::MakeConstSpan(continuation()).first(continuation().size() - 1),
                  .keep = KeepRows::kNone,
                  .first_position = context_tokens() + request_->prompt_tokens(),
                  .all_logits = true});
    next_row_ = 0;
    return absl::OkStatus();
  }
  timings_.decode_seconds = Seconds(Clock::now() - prefilled_);
  done_ = true;
  return absl::OkStatus();
}

absl::Status ScoreTask::ScoreRows() {
  const auto rows = static_cast<int64_t>(continuation().size()) - 1;
  const int n = static_cast<int>(std::min<int64_t>(Decoder::kMaxRows, rows - next_row_));
  const auto width = static_cast<size_t>(vocab());
  logits_.resize(static_cast<size_t>(n) * width);
  prefill_->Logits(next_row_, n, logits_.data());
  for (int i = 0; i < n; ++i, ++next_row_) {
    const auto row = absl::MakeConstSpan(logits_).subspan(static_cast<size_t>(i) * width, width);
    if (absl::Status status = Score(row, static_cast<size_t>(next_row_) + 1); !status.ok()) {
      return status;
    }
  }
  if (next_row_ < rows) return absl::OkStatus();
  prefill_.reset();
  EndContinuation();
  return StartContinuation();
}

absl::Status ScoreTask::Score(absl::Span<const float> logits, size_t token) {
  if (absl::Status status = CheckFinite(logits); !status.ok()) return status;
  const int32_t id = continuation()[token];
  const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
  result_.continuations.back().tokens.push_back(
      {.token = id, .logprob = Logprobs(logits, id, 0).logprob, .greedy = best == id});
  return absl::OkStatus();
}

void ScoreTask::EndContinuation() {
  ContinuationScore& score = result_.continuations.back();
  score.greedy = true;
  for (const TokenScore& token : score.tokens) {
    score.logprob += double{token.logprob};
    score.greedy = score.greedy && token.greedy;
  }
  result_.usage.completion_tokens += static_cast<int64_t>(score.tokens.size());
  ++current_;
}

void ScoreTask::Complete() {
  result_.timings = timings_;
  work_item().sink->OnComplete(std::move(result_));
}

}  // namespace ripplekv
