#include "server/engine/engine.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/engine/admission.h"
#include "server/engine/generation_task.h"
#include "server/engine/request_queue.h"
#include "server/engine/request_validation.h"
#include "server/engine/turn_policy.h"
#include "server/kv/invariants.h"
#include "server/kv/layer_pool.h"
#include "server/kv/page_arena.h"

namespace ripplekv {

class Engine::Impl {
 public:
  Impl(const EngineOptions& options, std::unique_ptr<Decoder> decoder,
       std::shared_ptr<const Tokenizer> tokenizer, std::shared_ptr<const Plan> plan,
       EngineObserver* observer, const RequestLimits& limits, const KvPageLayout& layout,
       std::unique_ptr<PageArena> arena)
      : options_(options),
        decoder_(std::move(decoder)),
        tokenizer_(std::move(tokenizer)),
        observer_(observer),
        limits_(limits),
        layout_(layout),
        arena_(std::move(arena)),
        pools_(MakeLayerPools(decoder_->config().layers, arena_.get())),
        queue_(options.max_queue),
        plan_(std::move(plan)) {
    for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
      if (tokenizer_->IsEndOfGeneration(id)) end_of_text_.push_back(id);
    }
    Publish();
    thread_ = std::thread([this] { Run(); });
  }

  absl::StatusOr<std::shared_ptr<RequestHandle>> Submit(GenerateRequest request,
                                                        std::shared_ptr<GenerationSink> sink) {
    auto handle = TrySubmit(std::move(request), std::move(sink));
    if (!handle.ok() && observer_ != nullptr) observer_->OnRefused(RefusalReason::kInvalid, handle.status());
    return handle;
  }

  absl::Status SubmitBackground(std::shared_ptr<BackgroundJob> job) {
    return queue_.PushJob(std::move(job));
  }

  void SetPlan(std::shared_ptr<const Plan> plan) {
    {
      std::lock_guard lock(mutex_);
      plan_ = std::move(plan);
    }
    queue_.Wake();
  }
  std::shared_ptr<const Plan> plan() const {
    std::lock_guard lock(mutex_);
    return plan_;
  }
  EngineStats stats() const {
    EngineStats stats;
    {
      std::lock_guard lock(mutex_);
      stats = stats_;
    }
    stats.queued = queue_.waiting();
    return stats;
  }

  absl::Status Drain(Clock::time_point deadline) {
    queue_.Close();
    std::unique_lock lock(mutex_);
    if (idle_.wait_until(lock, deadline, [this] { return accepted_ == 0; }))
      return absl::OkStatus();
    return absl::DeadlineExceededError(absl::StrCat(accepted_, " requests are still running"));
  }

  void Shutdown() {
    queue_.Stop();
    std::lock_guard lock(shutdown_mutex_);
    if (thread_.joinable()) thread_.join();
  }

  Decoder* decoder() { return decoder_.get(); }
  const RequestLimits& limits() const { return limits_; }
  const KvPageLayout& layout() const { return layout_; }

 private:
  absl::StatusOr<std::shared_ptr<RequestHandle>> TrySubmit(GenerateRequest request,
                                                           std::shared_ptr<GenerationSink> sink);

  // The rest runs on the engine's thread.
  void Run();
  void ApplyPlan();
  void EndDeadRequests();
  void StartRequest();
  void StepRequest();
  void StepBackground();
  void StopEverything();
  absl::Status CheckInvariants() const;
  void Publish();
  void Finish(GenerationSink& sink, absl::StatusOr<Completion> result, int64_t prompt_tokens,
              int64_t completion_tokens);

  const EngineOptions options_;
  const std::unique_ptr<Decoder> decoder_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  EngineObserver* const observer_;
  const RequestLimits limits_;
  const KvPageLayout layout_;
  std::vector<int32_t> end_of_text_;

  // The engine thread's.
  std::unique_ptr<PageArena> arena_;
  std::vector<LayerPool> pools_;
  std::unique_ptr<GenerationTask> task_;
  std::deque<std::shared_ptr<BackgroundJob>> jobs_;
  TurnPolicy turn_;
  std::shared_ptr<const Plan> quota_plan_;  // what the pools' quotas come from

  RequestQueue queue_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable idle_;
  std::shared_ptr<const Plan> plan_;
  int64_t accepted_ = 0;  // submitted and not yet ended
  EngineStats stats_;

  std::mutex shutdown_mutex_;
  std::thread thread_;
};

absl::StatusOr<std::shared_ptr<RequestHandle>> Engine::Impl::TrySubmit(
    GenerateRequest request, std::shared_ptr<GenerationSink> sink) {
  if (absl::Status status = ValidateRequest(request, limits_); !status.ok()) return status;
  auto queued = std::make_unique<QueuedRequest>();
  queued->plan = plan();
  if (request.kv.allocator.has_value() || request.kv.selector.has_value()) {
    auto plan = queued->plan->With(request.kv.allocator, request.kv.selector);
    if (!plan.ok()) return plan.status();
    queued->plan = std::make_shared<const Plan>(*std::move(plan));
  }
  queued->max_tokens = EffectiveMaxTokens(request, limits_);
  auto admission =
      AdmitOrExplain(*queued->plan, request.kv.size, static_cast<int64_t>(request.prompt.size()),
                     queued->max_tokens, layout_, arena_->pages());
  if (!admission.ok()) return admission.status();
  queued->admission = *std::move(admission);
  queued->request = std::move(request);
  queued->sink = std::move(sink);
  auto handle = std::make_shared<RequestHandle>();
  queued->handle = handle;
  queued->submitted = Clock::now();
  {
    std::lock_guard lock(mutex_);
    ++accepted_;
  }
  if (absl::Status status = queue_.Push(std::move(queued)); !status.ok()) {
    std::lock_guard lock(mutex_);
    if (--accepted_ == 0) idle_.notify_all();
    return status;
  }
  return handle;
}

void Engine::Impl::Run() {
  while (!queue_.stopped()) {
    ApplyPlan();
    for (auto& job : queue_.TakeJobs()) jobs_.push_back(std::move(job));
    EndDeadRequests();
    switch (turn_.Next(task_ != nullptr, queue_.waiting() > 0, !jobs_.empty())) {
      case TurnPolicy::Turn::kWait:
        Publish();
        queue_.Wait();
        break;
      case TurnPolicy::Turn::kStartRequest:
        StartRequest();
        break;
      case TurnPolicy::Turn::kStepRequest:
        StepRequest();
        break;
      case TurnPolicy::Turn::kStepBackground:
        StepBackground();
        break;
    }
    Publish();
  }
  StopEverything();
}

void Engine::Impl::ApplyPlan() {
  std::shared_ptr<const Plan> plan = this->plan();
  if (plan == quota_plan_) return;
  SetQuotas(absl::MakeSpan(pools_), plan->multipliers());
  quota_plan_ = std::move(plan);
}

void Engine::Impl::EndDeadRequests() {
  const Clock::time_point now = Clock::now();
  for (auto& request : queue_.TakeDead(now)) {
    Finish(*request->sink, request->Alive(now),
           static_cast<int64_t>(request->request.prompt.size()), 0);
  }
}

void Engine::Impl::StartRequest() {
  std::unique_ptr<QueuedRequest> request = queue_.Pop();
  if (request == nullptr) return;
  const auto prompt_tokens = static_cast<int64_t>(request->request.prompt.size());
  const std::shared_ptr<GenerationSink> sink = request->sink;
  sink->OnStart();
  absl::Status failure;
  try {
    const TaskResources resources = {.decoder = decoder_.get(),
                                     .tokenizer = tokenizer_.get(),
                                     .end_of_text = end_of_text_,
                                     .arena = arena_.get(),
                                     .pools = absl::MakeSpan(pools_),
                                     .layout = layout_,
                                     .observer = observer_};
    auto task = GenerationTask::Start(resources, request);
    failure = task.status();
    if (task.ok()) task_ = *std::move(task);
  } catch (const std::exception& e) {
    failure = absl::ResourceExhaustedError(absl::StrCat("cannot start the request: ", e.what()));
  }
  if (!failure.ok()) {
    Finish(*sink, failure, prompt_tokens, 0);
    turn_.RequestEnded();
  }
}

void Engine::Impl::StepRequest() {
  absl::Status status = task_->request().Alive(Clock::now());
  if (status.ok()) {
    try {
      status = task_->Step();
    } catch (const std::exception& e) {
      status = absl::InternalError(absl::StrCat("a step of the request failed: ", e.what()));
    }
  }
  if (status.ok() && options_.check_invariants) status = CheckInvariants();
  if (status.ok() && !task_->done()) return;

  const std::shared_ptr<GenerationSink> sink = task_->request().sink;
  const auto prompt_tokens = static_cast<int64_t>(task_->request().request.prompt.size());
  const int64_t completion_tokens = task_->completion_tokens();
  const absl::StatusOr<Completion> result = status.ok()
                                                ? absl::StatusOr<Completion>(task_->completion())
                                                : absl::StatusOr<Completion>(status);
  // Its pages are free before anyone hears of its end.
  task_.reset();
  turn_.RequestEnded();
  Publish();
  Finish(*sink, result, prompt_tokens, completion_tokens);
}

void Engine::Impl::StepBackground() {
  std::shared_ptr<BackgroundJob> job = std::move(jobs_.front());
  jobs_.pop_front();
  absl::Status status;
  try {
    if (!job->done()) status = job->Step();
  } catch (const std::exception& e) {
    status = absl::InternalError(e.what());
  }
  turn_.BackgroundStepped();
  if (status.ok() && !job->done()) jobs_.push_back(std::move(job));
}

void Engine::Impl::StopEverything() {
  const absl::Status status = absl::UnavailableError("the server is shutting down");
  if (task_ != nullptr) {
    const std::shared_ptr<GenerationSink> sink = task_->request().sink;
    const auto prompt_tokens = static_cast<int64_t>(task_->request().request.prompt.size());
    const int64_t completion_tokens = task_->completion_tokens();
    task_.reset();
    Finish(*sink, status, prompt_tokens, completion_tokens);
  }
  while (std::unique_ptr<QueuedRequest> request = queue_.Pop()) {
    Finish(*request->sink, status, static_cast<int64_t>(request->request.prompt.size()), 0);
  }
  jobs_.clear();
  queue_.TakeJobs();
  Publish();
}

absl::Status Engine::Impl::CheckInvariants() const {
  const SequenceCache* cache = &task_->cache();
  return CheckKvInvariants(*arena_, pools_, {&cache, 1});
}

void Engine::Impl::Publish() {
  EngineStats stats;
  stats.running = task_ != nullptr ? 1 : 0;
  stats.background_jobs = static_cast<int64_t>(jobs_.size());
  stats.layers.reserve(pools_.size());
  for (const LayerPool& pool : pools_) {
    stats.layers.push_back({pool.used_bytes(), pool.reserved_bytes(), pool.quota_bytes()});
  }
  stats.kv_total_bytes = arena_->total_bytes();
  stats.kv_used_bytes = arena_->used_bytes();
  stats.kv_reserved_bytes = arena_->reserved_bytes();
  stats.prefill_layer_bytes = arena_->prefill_layer_used_bytes();
  std::lock_guard lock(mutex_);
  stats_ = std::move(stats);
}

void Engine::Impl::Finish(GenerationSink& sink, absl::StatusOr<Completion> result,
                          int64_t prompt_tokens, int64_t completion_tokens) {
  if (observer_ != nullptr)
    observer_->OnRequestEnd(result.status(), prompt_tokens, completion_tokens);
  if (result.ok()) {
    sink.OnComplete(*std::move(result));
  } else {
    sink.OnError(result.status());
  }
  std::lock_guard lock(mutex_);
  if (--accepted_ == 0) idle_.notify_all();
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options,
                                                       std::unique_ptr<Decoder> decoder,
                                                       std::shared_ptr<const Tokenizer> tokenizer,
                                                       std::shared_ptr<const Plan> plan,
                                                       EngineObserver* observer) {
  const ModelConfig& c = decoder->config();
  if (plan->layers() != c.layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan is for ", plan->layers(), " layers, the model has ", c.layers));
  }
  if (options.max_queue < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-queue is ", options.max_queue, ": must be at least 1"));
  }
  const int32_t longest = c.context_length - 1;
  if (options.max_prompt_tokens < 0 || options.max_prompt_tokens > longest) {
    return absl::InvalidArgumentError(absl::StrCat("max_prompt_tokens is ",
                                                   options.max_prompt_tokens, ": must be in [0, ",
                                                   longest, "] (0: ", longest, ")"));
  }
  const RequestLimits limits = {
      .vocab_size = c.vocab,
      .context_length = c.context_length,
      .max_prompt_tokens = options.max_prompt_tokens == 0 ? longest : options.max_prompt_tokens};
  const KvType type = decoder->kv_type();
  const KvPageLayout layout = KvPageLayout::For(
      type, c.kv_heads, c.head_dim,
      KvPageLayout::BytesForRowsPerPage(type, c.kv_heads, c.head_dim, kRowsPerPage));
  const size_t full_layer = static_cast<size_t>(limits.max_prompt_tokens) * 2 *
                            static_cast<size_t>(c.kv_heads * c.head_dim) * KvTypeBytes(type);
  const size_t least = full_layer + 64 + static_cast<size_t>(c.layers) * layout.page_bytes;
  if (options.kv_memory_bytes < least) {
    return absl::InvalidArgumentError(
        absl::StrCat("--kv-memory is ", options.kv_memory_bytes,
                     " bytes: one full layer of a prompt of ", limits.max_prompt_tokens,
                     " tokens and a page in each of ", c.layers, " layers take ", least));
  }
  auto arena = PageArena::Create({.total_bytes = options.kv_memory_bytes,
                                  .page_bytes = layout.page_bytes,
                                  .prefill_layer_bytes = full_layer});
  if (!arena.ok()) return arena.status();
  return std::unique_ptr<Engine>(new Engine(
      std::make_unique<Impl>(options, std::move(decoder), std::move(tokenizer), std::move(plan),
                             observer, limits, layout, *std::move(arena))));
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Engine::~Engine() { Shutdown(); }

absl::StatusOr<std::shared_ptr<RequestHandle>> Engine::Submit(
    GenerateRequest request, std::shared_ptr<GenerationSink> sink) {
  return impl_->Submit(std::move(request), std::move(sink));
}

absl::StatusOr<std::shared_ptr<RequestHandle>> Engine::Submit(ScoreRequest,
                                                              std::shared_ptr<ScoreSink>) {
  return absl::UnimplementedError("Score");
}
absl::StatusOr<std::shared_ptr<RequestHandle>> Engine::Submit(ContextRequest,
                                                              std::shared_ptr<ContextSink>) {
  return absl::UnimplementedError("CreateContext");
}
absl::Status Engine::SubmitBackground(std::shared_ptr<BackgroundJob> job) {
  return impl_->SubmitBackground(std::move(job));
}

void Engine::SetPlan(std::shared_ptr<const Plan> plan) { impl_->SetPlan(std::move(plan)); }
std::shared_ptr<const Plan> Engine::plan() const { return impl_->plan(); }
EngineStats Engine::stats() const { return impl_->stats(); }
const ModelConfig& Engine::config() const { return impl_->decoder()->config(); }
int32_t Engine::max_prompt_tokens() const { return impl_->limits().max_prompt_tokens; }
const KvPageLayout& Engine::kv_layout() const { return impl_->layout(); }
Decoder* Engine::decoder() { return impl_->decoder(); }
absl::Status Engine::Drain(Clock::time_point deadline) { return impl_->Drain(deadline); }
void Engine::Shutdown() { impl_->Shutdown(); }

}  // namespace ripplekv
