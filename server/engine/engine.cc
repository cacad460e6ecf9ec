#include "server/engine/engine.h"

#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "calibration/policy/selector.h"
#include "server/engine/capacity.h"
#include "server/engine/context_registry.h"
#include "server/engine/context_task.h"
#include "server/engine/engine_loop.h"
#include "server/engine/engine_shared.h"
#include "server/engine/generate_task.h"
#include "server/engine/prefill.h"
#include "server/engine/request_validation.h"
#include "server/engine/score_task.h"
#include "server/engine/too_large.h"

namespace ripplekv {
namespace {

RefusalReason ReasonOf(const absl::Status& status) {
  if (absl::IsUnavailable(status)) return RefusalReason::kShuttingDown;
  if (absl::IsResourceExhausted(status)) return RefusalReason::kQueueFull;
  return status.GetPayload(kTooLarge).has_value() ? RefusalReason::kTooLarge
                                                  : RefusalReason::kInvalid;
}

// Where one of the two is given, the other is the server's own.
std::optional<KvTypes> TypesOf(const KvParams& kv, const Plan& plan) {
  if (!kv.key_type.has_value() && !kv.value_type.has_value()) return std::nullopt;
  const KvTypes own = plan.spec().kv_types;
  return KvTypes(kv.key_type.value_or(own.k), kv.value_type.value_or(own.v));
}

template <typename Request>
std::shared_ptr<const ContextLease> ContextOf(const Request& request) {
  if constexpr (std::is_same_v<Request, ContextRequest>) {
    return nullptr;
  } else {
    return request.context;
  }
}

}  // namespace

class Engine::Impl {
 public:
  Impl(const EngineOptions& options, std::unique_ptr<Decoder> decoder,
       std::shared_ptr<const Tokenizer> tokenizer, std::shared_ptr<const Plan> plan,
       EngineObserver* observer, const RequestLimits& limits, const KvPageLayout& layout,
       std::unique_ptr<PageArena> arena)
      : options_(options),
        tokenizer_(std::move(tokenizer)),
        observer_(observer),
        limits_(limits),
        layout_(layout),
        arena_pages_(arena->pages()),
        config_(decoder->config()),
        threads_(decoder->pool()->threads()),
        shared_(options.max_queue,
                {.memory_bytes = static_cast<int64_t>(options.context_memory_bytes),
                 .idle = options.context_idle},
                std::move(plan)),
        loop_(options, std::move(decoder), tokenizer_.get(), observer, layout, std::move(arena),
              &shared_),
        thread_([this] { loop_.Run(); }) {}

  template <typename Work, typename Request, typename Sink>
  absl::StatusOr<std::shared_ptr<RequestHandle>> Submit(Request request,
                                                        std::shared_ptr<Sink> sink) {
    auto handle = TrySubmit<Work>(std::move(request), std::move(sink));
    if (!handle.ok() && observer_ != nullptr) {
      observer_->OnRefused(ReasonOf(handle.status()), handle.status());
    }
    return handle;
  }

  EngineStats stats() {
    EngineStats stats = shared_.stats();
    stats.queued = shared_.queue().waiting();
    const ContextStats contexts = shared_.contexts().stats();
    stats.contexts = contexts.contexts;
    stats.context_bytes = static_cast<size_t>(contexts.bytes);
    stats.contexts_evicted = contexts.evicted;
    stats.contexts_expired = contexts.expired;
    return stats;
  }

  absl::Status Drain(Clock::time_point deadline) {
    shared_.queue().Close();
    return shared_.WaitUntilIdle(deadline);
  }

  void Shutdown() {
    shared_.queue().Stop();
    const std::lock_guard lock(shutdown_mutex_);
    if (thread_.joinable()) thread_.join();
  }

  EngineShared& shared() { return shared_; }
  Decoder* decoder() { return loop_.decoder(); }
  const ModelConfig& config() const { return config_; }
  const RequestLimits& limits() const { return limits_; }
  const KvPageLayout& layout() const { return layout_; }

 private:
  template <typename Work, typename Request, typename Sink>
  absl::StatusOr<std::shared_ptr<RequestHandle>> TrySubmit(Request request,
                                                           std::shared_ptr<Sink> sink);
  bool Sampled();

  const EngineOptions options_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  EngineObserver* const observer_;
  const RequestLimits limits_;
  const KvPageLayout layout_;
  const int64_t arena_pages_;
  const ModelConfig config_;
  const int threads_;  // that compute

  EngineShared shared_;
  EngineLoop loop_;

  std::mutex sample_mutex_;
  double sample_owed_ = 0;  // shares of requests since one was sampled; guarded by sample_mutex_

  std::mutex shutdown_mutex_;
  std::thread thread_;
};

// Evenly spread: of any n requests, n times the share of them, give or take one.
bool Engine::Impl::Sampled() {
  const std::lock_guard lock(sample_mutex_);
  sample_owed_ += options_.fidelity_sample;
  if (sample_owed_ < 1) return false;
  sample_owed_ -= 1;
  return true;
}

template <typename Work, typename Request, typename Sink>
absl::StatusOr<std::shared_ptr<RequestHandle>> Engine::Impl::TrySubmit(Request request,
                                                                       std::shared_ptr<Sink> sink) {
  if (absl::Status status = ValidateRequest(request, limits_); !status.ok()) return status;
  auto queued = std::make_unique<QueuedRequest>();
  queued->plan = shared_.plan();
  const std::optional<KvTypes> types = TypesOf(request.kv, *queued->plan);
  if (request.kv.allocator.has_value() || request.kv.selector.has_value() || types.has_value()) {
    auto plan = queued->plan->With(request.kv.allocator, request.kv.selector, types);
    if (!plan.ok()) return plan.status();
    queued->plan = std::make_shared<const Plan>(*std::move(plan));
  }
  if (request.kv.size.has_value() &&
      std::holds_alternative<PositionsAllocator>(queued->plan->allocator())) {
    return absl::InvalidArgumentError(
        "kv.size is given beside the positions allocator: must be absent, since the positions are "
        "the size");
  }
  const std::shared_ptr<const ContextLease> context = ContextOf(request);
  std::vector<int64_t> base_rows;
  std::vector<KvTypes> base_types;
  int64_t pages = arena_pages_;  // that the request can have at most: its context's stay
  if (context != nullptr) {
    for (const LayerUsage& layer : context->info().layers) {
      base_rows.push_back(layer.positions);
      base_types.push_back(layer.types);
      pages -= layout_.With(layer.types).PagesFor(layer.positions);
    }
  }
  AdmissionRequest wanted = {.size = request.kv.size,
                             .prompt_tokens = static_cast<int64_t>(request.prompt.size()),
                             .base_rows = base_rows,
                             .base_types = base_types};
  const KvPageLayout full_cache_layout = FullCacheLayout(layout_);
  int64_t longest_continuation = 0;
  if constexpr (std::is_same_v<Request, GenerateRequest>) {
    queued->max_tokens = EffectiveMaxTokens(request, limits_);
    wanted.max_tokens = queued->max_tokens;
    wanted.growth_cap = request.kv.growth_cap.value_or(options_.growth_cap);
    queued->measure_kl = request.next_token_kl;
  } else if constexpr (std::is_same_v<Request, ScoreRequest>) {
    queued->reference = request.reference;
    if (request.reference) wanted.full_cache = &full_cache_layout;
    for (const auto& ids : request.continuations) {
      longest_continuation = std::max(longest_continuation, static_cast<int64_t>(ids.size()));
    }
  }
  auto admission = AdmitOrExplain(*queued->plan, wanted, layout_, pages);
  if (!admission.ok()) return admission.status();
  queued->admission = *std::move(admission);
  if constexpr (std::is_same_v<Request, GenerateRequest>) {
    int64_t tracked_rows = 0;
    if (wanted.growth_cap > 0) {
      for (int64_t rows : queued->admission.capacity_rows) tracked_rows += rows;
    }
    queued->decode_work_bytes = GenerateTask::WorkBytes(config_, tracked_rows);
    // Sampling is drawn last: what is refused would use the share up.
    queued->measure_kl = queued->measure_kl || (context == nullptr && Sampled());
  } else if constexpr (std::is_same_v<Request, ScoreRequest>) {
    queued->decode_work_bytes = ScoreTask::WorkBytes(config_, request.reference);
  } else {
    queued->decode_work_bytes = static_cast<size_t>(config_.vocab) * sizeof(float);
    const int64_t bytes = queued->admission.pages * static_cast<int64_t>(layout_.page_bytes) +
                          ContextTask::KeptBytes(config_, wanted.prompt_tokens);
    if (bytes > static_cast<int64_t>(options_.context_memory_bytes)) {
      return TooLarge(absl::StrCat("the context takes ", bytes, " bytes, --context-memory is ",
                                   options_.context_memory_bytes,
                                   ": keep less (retention) or give the server more"));
    }
  }
  const size_t prefill_bytes =
      context == nullptr
          ? PromptWorkBytes(config_, layout_.type, *queued->plan, queued->admission.budgets,
                            wanted.prompt_tokens, threads_)
          : Prefill::WorkBytes(config_, layout_.type, wanted.prompt_tokens);
  // The prompt first, then a continuation, with a reference over both caches.
  queued->work_bytes =
      queued->decode_work_bytes +
      std::max(prefill_bytes, Prefill::WorkBytes(config_, layout_.type, longest_continuation) *
                                  (queued->reference ? 2 : 1));
  if (queued->work_bytes > options_.work_memory_bytes) {
    return TooLarge(
        absl::StrCat("the request's activations take ", queued->work_bytes, " bytes for ",
                     std::max(wanted.prompt_tokens, longest_continuation), " tokens",
                     queued->reference ? " (continuations twice, because of reference)" : "",
                     "; --work-memory is ", options_.work_memory_bytes, ": give at least as much"));
  }
  queued->work = Work{std::move(request), std::move(sink)};
  auto handle = std::make_shared<RequestHandle>();
  queued->handle = handle;
  queued->submitted = Clock::now();
  if (options_.queue_timeout.count() > 0) {
    queued->start_by = queued->submitted + options_.queue_timeout;
  }
  shared_.RequestAccepted();
  absl::Status status;
  try {
    status = shared_.queue().Push(std::move(queued));
  } catch (...) {
    shared_.RequestEnded();
    throw;
  }
  if (!status.ok()) {
    shared_.RequestEnded();
    return status;
  }
  return handle;
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
  if (options.max_batch < 1 || options.max_batch > Decoder::kMaxRows) {
    return absl::InvalidArgumentError(absl::StrCat("--max-batch is ", options.max_batch,
                                                   ": must be in [1, ", Decoder::kMaxRows, "]"));
  }
  if (options.growth_cap != 0 && (options.growth_cap < KvParams::kMinGrowthCap ||
                                  options.growth_cap > KvParams::kMaxGrowthCap)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--growth-cap is ", options.growth_cap, ": must be 0 (unbounded) or in [",
                     KvParams::kMinGrowthCap, ", ", KvParams::kMaxGrowthCap, "]"));
  }
  if (!(options.fidelity_sample >= 0 && options.fidelity_sample <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--fidelity-sample is ", options.fidelity_sample, ": must be in [0, 1]"));
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
  const auto division =
      DivideKvMemory(c, plan->spec().kv_types, decoder->kv_type(), options.kv_memory_bytes,
                     limits.max_prompt_tokens, options.plans_choose_types);
  if (!division.ok()) {
    return absl::Status(division.status().code(),
                        absl::StrCat("--kv-memory ", division.status().message()));
  }
  auto arena = PageArena::Create(division->arena);
  if (!arena.ok()) return arena.status();
  return std::unique_ptr<Engine>(new Engine(
      std::make_unique<Impl>(options, std::move(decoder), std::move(tokenizer), std::move(plan),
                             observer, limits, division->layout, *std::move(arena))));
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Engine::~Engine() { Shutdown(); }

absl::StatusOr<std::shared_ptr<RequestHandle>> Engine::Submit(
    GenerateRequest request, std::shared_ptr<GenerationSink> sink) {
  return impl_->Submit<GenerateWork>(std::move(request), std::move(sink));
}
absl::StatusOr<std::shared_ptr<RequestHandle>> Engine::Submit(ScoreRequest request,
                                                              std::shared_ptr<ScoreSink> sink) {
  return impl_->Submit<ScoreWork>(std::move(request), std::move(sink));
}
absl::StatusOr<std::shared_ptr<RequestHandle>> Engine::Submit(ContextRequest request,
                                                              std::shared_ptr<ContextSink> sink) {
  return impl_->Submit<ContextWork>(std::move(request), std::move(sink));
}

ContextRegistry& Engine::contexts() { return impl_->shared().contexts(); }

absl::Status Engine::SubmitBackground(std::shared_ptr<BackgroundJob> job) {
  return impl_->shared().queue().PushJob(std::move(job));
}

void Engine::SetPlan(std::shared_ptr<const Plan> plan) { impl_->shared().SetPlan(std::move(plan)); }
std::shared_ptr<const Plan> Engine::plan() const { return impl_->shared().plan(); }
EngineStats Engine::stats() const { return impl_->stats(); }
const ModelConfig& Engine::config() const { return impl_->config(); }
int32_t Engine::max_prompt_tokens() const { return impl_->limits().max_prompt_tokens; }
const KvPageLayout& Engine::kv_layout() const { return impl_->layout(); }
Decoder* Engine::decoder() { return impl_->decoder(); }
absl::Status Engine::Drain(Clock::time_point deadline) { return impl_->Drain(deadline); }
void Engine::Shutdown() { impl_->Shutdown(); }

}  // namespace ripplekv
