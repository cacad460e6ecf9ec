#include "server/engine/generation_task.h"

#include <cmath>
#include <utility>

#include "kernels/kl_divergence.h"

namespace ripplekv {
namespace {

double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

absl::Status CheckFinite(absl::Span<const float> logits) {
  bool finite = true;
  for (float x : logits) finite &= std::isfinite(x);
  if (finite) return absl::OkStatus();
  return absl::InternalError("the model's logits are not finite: the model file may be damaged");
}

}  // namespace

absl::StatusOr<std::unique_ptr<GenerationTask>> GenerationTask::Start(
    const TaskResources& resources, std::unique_ptr<QueuedRequest>& request) {
  const size_t before = resources.arena->used_bytes();
  auto cache =
      SequenceCache::Reserve(resources.pools, resources.layout, request->admission.capacity_rows);
  if (!cache.ok()) return cache.status();
  auto task = std::unique_ptr<GenerationTask>(
      new GenerationTask(resources, std::move(request), *std::move(cache)));
  task->arena_before_bytes_ = before;
  return task;
}

GenerationTask::GenerationTask(const TaskResources& resources,
                               std::unique_ptr<QueuedRequest> request, SequenceCache cache)
    : resources_(resources),
      request_(std::move(request)),
      cache_(std::move(cache)),
      decode_(resources.decoder),
      sampler_(request_->request.sampling, request_->request.sampling.seed.value_or(MakeSeed()),
               resources.decoder->config().vocab, request_->request.prompt),
      output_(resources.tokenizer, resources.end_of_text, request_->request.stopping,
              request_->max_tokens),
      started_(Clock::now()) {
  completion_.timings.queue_seconds = Seconds(started_ - request_->submitted);
  if (resources_.observer != nullptr)
    resources_.observer->OnQueueTime(completion_.timings.queue_seconds);
  resources_.arena->ResetPeak();
  prefill_.emplace(resources_.decoder, resources_.arena, &cache_, request_->request.prompt,
                   request_->admission.budgets, request_->plan->selector(),
                   request_->plan->sinks());
}

absl::Status GenerationTask::Step() {
  if (prefill_.has_value()) {
    if (absl::Status status = prefill_->Step(); !status.ok()) return status;
    if (!prefill_->done()) return absl::OkStatus();
    if (absl::Status status = FinishPrefill(); !status.ok()) return status;
    return EmitToken();
  }
  const DecodeRow row = {
      .token = last_token_,
      .position = static_cast<int32_t>(request_->request.prompt.size()) + output_.tokens() - 1,
      .cache = &cache_};
  if (absl::Status status = decode_.Run({&row, 1}, logits_.data()); !status.ok()) return status;
  return EmitToken();
}

absl::Status GenerationTask::FinishPrefill() {
  logits_.resize(static_cast<size_t>(resources_.decoder->config().vocab));
  prefill_->Logits(logits_.data());
  prefill_.reset();
  prefilled_ = Clock::now();
  completion_.timings.prefill_seconds = Seconds(prefilled_ - started_);

  const auto prompt_tokens = static_cast<int64_t>(request_->request.prompt.size());
  int64_t kept = 0;
  for (int l = 0; l < cache_.layers(); ++l) {
    completion_.cache.layers.push_back({cache_.rows(l), cache_.bytes(l)});
    kept += cache_.rows(l);
  }
  const int64_t all = prompt_tokens * cache_.layers();
  completion_.cache.kept_bytes = static_cast<size_t>(kept) * resources_.layout.RowBytes();
  completion_.cache.full_bytes = static_cast<size_t>(all) * resources_.layout.RowBytes();
  completion_.cache.peak_prefill_bytes = resources_.arena->peak_bytes() - arena_before_bytes_;
  completion_.usage.prompt_tokens = prompt_tokens;
  completion_.seed = sampler_.seed();
  if (resources_.observer != nullptr)
    resources_.observer->OnPrefill(prompt_tokens, kept, all - kept);

  if (request_->request.next_token_kl) {
    if (absl::Status status = MeasureNextTokenKl(); !status.ok()) return status;
    prefilled_ = Clock::now();
  }
  return absl::OkStatus();
}

absl::Status GenerationTask::MeasureNextTokenKl() {
  const std::vector<int32_t>& prompt = request_->request.prompt;
  const DecodeRow row = {.token = prompt.back(),
                         .position = static_cast<int32_t>(prompt.size()) - 1,
                         .cache = &cache_,
                         .append = false};
  std::vector<float> over_cache(logits_.size());
  if (absl::Status status = decode_.Run({&row, 1}, over_cache.data()); !status.ok()) return status;
  completion_.next_token_kl =
      KlDivergenceOfLogits(logits_.data(), over_cache.data(), static_cast<int64_t>(logits_.size()));
  if (resources_.observer != nullptr)
    resources_.observer->OnNextTokenKl(*completion_.next_token_kl, 0);
  return absl::OkStatus();
}

absl::Status GenerationTask::EmitToken() {
  if (absl::Status status = CheckFinite(logits_); !status.ok()) return status;
  const GenerateRequest& request = request_->request;
  const int32_t token = sampler_.Sample(logits_, output_.banned());
  sampler_.Accept(token);
  last_token_ = token;
  OutputStream::Piece piece = output_.Push(token);

  TokenChunk chunk;
  chunk.text = std::move(piece.text);
  chunk.token_ids.push_back(token);
  if (request.logprobs.has_value())
    chunk.logprobs.push_back(Logprobs(logits_, token, *request.logprobs));

  const Clock::time_point now = Clock::now();
  const bool first = output_.tokens() == 1;
  if (first) completion_.timings.first_token_seconds = Seconds(now - request_->submitted);
  if (resources_.observer != nullptr) {
    if (first) {
      resources_.observer->OnFirstToken(completion_.timings.first_token_seconds);
    } else {
      resources_.observer->OnTokenInterval(Seconds(now - last_emitted_));
    }
  }
  last_emitted_ = now;
  request_->sink->OnTokens(std::move(chunk));

  if (piece.finished.has_value()) {
    completion_.finish_reason = *piece.finished;
    completion_.matched_stop_string = std::move(piece.stop_string);
    completion_.matched_stop_token = piece.stop_token;
    completion_.usage.completion_tokens = output_.tokens();
    completion_.timings.decode_seconds = Seconds(now - prefilled_);
    done_ = true;
  }
  return absl::OkStatus();
}

}  // namespace ripplekv
