#include "server/engine/generate_task.h"

#include <algorithm>
#include <utility>

#include "calibration/policy/selector.h"
#include "kernels/kl_divergence.h"

namespace ripplekv {
namespace {

// What penalties count: the context's tokens come before the prompt's.
std::vector<int32_t> PenalisedPrompt(const QueuedRequest& request) {
  std::vector<int32_t> tokens;
  if (request.context() != nullptr) tokens = request.context()->info().origin->tokens;
  tokens.insert(tokens.end(), request.prompt().begin(), request.prompt().end());
  return tokens;
}

}  // namespace

GenerateTask::GenerateTask(int64_t id, const TaskResources& resources,
                           std::unique_ptr<QueuedRequest> request, TaskHoldings holdings)
    : Task(id, resources, std::move(request), std::move(holdings)),
      sampler_(generate().sampling, generate().sampling.seed.value_or(MakeSeed()), vocab(),
               PenalisedPrompt(*request_)),
      output_(resources.tokenizer, resources.end_of_text, generate().stopping,
              request_->max_tokens) {
  PrefillSpec spec = {.tokens = request_->prompt(), .first_position = context_tokens()};
  if (context_ != nullptr) {
    spec.keep = KeepRows::kAll;
  } else {
    spec.budgets = &request_->admission.budgets;
    spec.selector = request_->plan->selector();
    spec.sinks = request_->plan->sinks();
    spec.measure_floor = request_->measure_kl;
  }
  StartPrefill(spec);
}

size_t GenerateTask::WorkBytes(const ModelConfig& config, int64_t tracked_rows) {
  return Sampler::WorkBytes(config.vocab) + 2 * static_cast<size_t>(config.vocab) * sizeof(float) +
         static_cast<size_t>(tracked_rows * config.kv_heads) * SequenceCache::kMassBytes;
}

absl::Status GenerateTask::OnPrefilled() {
  std::vector<float> logits(static_cast<size_t>(vocab()));
  prefill_->LastLogits(logits.data());
  prefilled_ = Clock::now();
  timings_.prefill_seconds = Seconds(prefilled_ - started_);
  completion_.cache = NotePrefilled();
  completion_.usage.context_tokens = context_tokens();
  completion_.usage.prompt_tokens = request_->prompt_tokens();
  completion_.seed = sampler_.seed();
  if (request_->measure_kl) {
    if (absl::Status status = MeasureNextTokenKl(logits); !status.ok()) return status;
    prefilled_ = Clock::now();
  }
  prefill_.reset();
  work_.ShrinkTo(request_->decode_work_bytes);
  // Rows that growth can't reach the cap of are never ranked.
  for (int l = 0; l < cache_.layers(); ++l) {
    if (cache_.capacity(l) < cache_.rows(l) + request_->max_tokens) {
      cache_.TrackMass();
      break;
    }
  }
  return Emit(logits);
}

absl::Status GenerateTask::MeasureNextTokenKl(absl::Span<const float> exact) {
  const DecodeRow row = {.token = request_->prompt().back(),
                         .position = static_cast<int32_t>(request_->prompt_tokens()) - 1,
                         .cache = &cache_,
                         .append = false};
  std::vector<float> other(exact.size());
  if (absl::Status status = resources_.decode->Run({&row, 1}, other.data()); !status.ok()) {
    return status;
  }
  if (absl::Status status = CheckFinite(exact); !status.ok()) return status;
  if (absl::Status status = CheckFinite(other); !status.ok()) return status;
  const auto n = static_cast<int64_t>(exact.size());
  // A divergence of nothing may come out a little below zero by rounding.
  completion_.next_token_kl = std::max(0.0, KlDivergenceOfLogits(exact.data(), other.data(), n));
  prefill_->FloorLogits(other.data());
  if (absl::Status status = CheckFinite(other); !status.ok()) return status;
  completion_.next_token_kl_floor =
      std::max(0.0, KlDivergenceOfLogits(exact.data(), other.data(), n));
  if (resources_.observer != nullptr) {
    resources_.observer->OnNextTokenKl(*completion_.next_token_kl,
                                       *completion_.next_token_kl_floor);
  }
  return absl::OkStatus();
}

absl::Status GenerateTask::Prepare() {
  int64_t compacted = 0;
  for (int l = 0; l < cache_.layers(); ++l) {
    if (cache_.rows(l) < cache_.capacity(l)) continue;
    const Plan& plan = *request_->plan;
    if (absl::Status status =
            cache_.CompactBack(l, request_->admission.target_rows[static_cast<size_t>(l)],
                               plan.sinks(), SelectorWindow(plan.selector()));
        !status.ok()) {
      return status;
    }
    ++compacted;
  }
  if (compacted > 0) {
    completion_.compactions += compacted;
    if (resources_.observer != nullptr) resources_.observer->OnCompaction(compacted);
  }
  return absl::OkStatus();
}

DecodeRow GenerateTask::Row() {
  return {.token = last_token_,
          .position = static_cast<int32_t>(context_tokens() + request_->prompt_tokens()) +
                      output_.tokens() - 1,
          .cache = &cache_};
}

absl::Status GenerateTask::Accept(absl::Span<const float> logits) {
  cache_.CommitStep();
  return Emit(logits);
}

absl::Status GenerateTask::Emit(absl::Span<const float> logits) {
  if (absl::Status status = CheckFinite(logits); !status.ok()) return status;
  const int32_t token = sampler_.Sample(logits, output_.banned());
  sampler_.Accept(token);
  last_token_ = token;
  OutputStream::Piece piece = output_.Push(token);

  TokenChunk chunk;
  chunk.text = std::move(piece.text);
  chunk.token_ids.push_back(token);
  if (generate().logprobs.has_value())
    chunk.logprobs.push_back(Logprobs(logits, token, *generate().logprobs));

  const Clock::time_point now = Clock::now();
  const bool first = output_.tokens() == 1;
  if (first) timings_.first_token_seconds = Seconds(now - request_->submitted);
  if (resources_.observer != nullptr) {
    if (first) {
      resources_.observer->OnFirstToken(timings_.first_token_seconds);
    } else {
      resources_.observer->OnTokenInterval(Seconds(now - last_emitted_));
    }
  }
  last_emitted_ = now;
  work_item().sink->OnTokens(std::move(chunk));

  if (piece.finished.has_value()) {
    completion_.finish_reason = *piece.finished;
    completion_.matched_stop_string = std::move(piece.stop_string);
    completion_.matched_stop_token = piece.stop_token;
    completion_.usage.completion_tokens = output_.tokens();
    timings_.decode_seconds = Seconds(now - prefilled_);
    done_ = true;
  }
  return absl::OkStatus();
}

void GenerateTask::Complete() {
  completion_.timings = timings_;
  work_item().sink->OnComplete(std::move(completion_));
}

}  // namespace ripplekv
