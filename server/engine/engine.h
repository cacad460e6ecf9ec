#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "calibration/background_job.h"
#include "calibration/policy/plan.h"
#include "kernels/kv_page.h"
#include "model/decoder.h"
#include "model/tokenizer.h"

#include "server/engine/context_registry.h"
#include "server/engine/engine_observer.h"
#include "server/engine/request.h"
#include "server/engine/request_handle.h"

namespace ripplekv {

struct EngineOptions {
  size_t kv_memory_bytes = size_t{256} << 20;
  // Activations: residual streams of prompts on their way, scores, logits.
  size_t work_memory_bytes = size_t{512} << 20;
  int max_batch = Decoder::kMaxRows;  // requests at work at once, [1, Decoder::kMaxRows]
  int max_queue = 64;                 // waiting requests, at least 1; beyond: RESOURCE_EXHAUSTED
  // A request that waits longer ends with RESOURCE_EXHAUSTED; zero: it waits as long as it takes.
  std::chrono::milliseconds queue_timeout{0};
  int32_t max_prompt_tokens =
      0;                   // 0: the model's context_length - 1; sizes the arena's prefill layer
  int32_t growth_cap = 0;  // of requests that do not say; see KvParams
  // All contexts' pages together; zero: no contexts. Within kv_memory_bytes.
  size_t context_memory_bytes = size_t{64} << 20;
  std::chrono::milliseconds context_idle{std::chrono::minutes(60)};  // then it expires; zero: never
  double fidelity_sample = 0;  // share of requests whose next_token_kl is measured, [0, 1]
  // Most rows will be int4, whatever the first plan stores: sizes the arena's pages.
  bool plans_choose_types = false;
  // Called before each layer of a decode step; what it throws fails the step. For tests of faults.
  std::function<void(int layer)> before_decode_layer;
  // After every step; a broken one ends all requests at work with INTERNAL.
#ifdef NDEBUG
  bool check_invariants = false;
#else
  bool check_invariants = true;
#endif
};

/// Serves many requests at once on one thread of its own that owns the decoder, the page arena and
/// the sequences (README.md in this directory tells how). All public methods may be called from any
/// thread unless they say otherwise.
class Engine {
 public:
  static constexpr int kRowsPerPage = 32;
  /// Of pages for plans that choose types: at 64 channels a head also 96 rows of int8 keys with
  /// int4 values, or 64 of int8, all of them whole blocks of decode attention.
  static constexpr int kInt4RowsPerPage = 128;

  /// A page holds kRowsPerPage rows of the plan's kv_types (options.plans_choose_types:
  /// kInt4RowsPerPage rows of int4), whatever later plans and requests store. The decoder's thread
  /// pool and `observer` (may be null) must outlive the engine. Decoder, pool and LibTorch belong
  /// to the engine's thread from here on. INVALID_ARGUMENT: kv_memory_bytes cannot hold one layer
  /// of the longest prompt and a page in every layer (says how much would do).
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options,
                                                        std::unique_ptr<Decoder> decoder,
                                                        std::shared_ptr<const Tokenizer> tokenizer,
                                                        std::shared_ptr<const Plan> plan,
                                                        EngineObserver* observer);
  /// Shutdown().
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Queues a request under the plan in force now. Errors, after which the sink hears nothing:
  /// INVALID_ARGUMENT (field, value, range), RESOURCE_EXHAUSTED (queue full, with the payload
  /// kRetryLater), TooLarge (the server's memory can never hold it: the message gives the figures
  /// and the largest request that fits), UNAVAILABLE (draining).
  absl::StatusOr<std::shared_ptr<RequestHandle>> Submit(GenerateRequest request,
                                                        std::shared_ptr<GenerationSink> sink);
  absl::StatusOr<std::shared_ptr<RequestHandle>> Submit(ScoreRequest request,
                                                        std::shared_ptr<ScoreSink> sink);
  absl::StatusOr<std::shared_ptr<RequestHandle>> Submit(ContextRequest request,
                                                        std::shared_ptr<ContextSink> sink);

  /// The contexts that can be used now.
  ContextRegistry& contexts();

  /// Adds a job. Its slices run between the steps of requests (see Scheduler); several jobs take
  /// turns. The engine lets go of a job, on its own thread, when it is
  /// done, failed (a job reports its own error) or the engine shuts down. UNAVAILABLE when
  /// draining.
  absl::Status SubmitBackground(std::shared_ptr<BackgroundJob> job);

  /// The plan of requests submitted from now on.
  void SetPlan(std::shared_ptr<const Plan> plan);
  std::shared_ptr<const Plan> plan() const;

  EngineStats stats() const;
  const ModelConfig& config() const;
  int32_t max_prompt_tokens() const;
  /// How rows of the types that the server started with lie in a page: RowBytes() is what one
  /// position takes in a layer. Full caches are counted in them.
  const KvPageLayout& kv_layout() const;

  /// The decoder, for use within BackgroundJob::Step (the engine's thread) only.
  Decoder* decoder();

  /// Refuses new requests, ends background jobs with CANCELLED and waits until all accepted
  /// requests ended, at most until the deadline. DEADLINE_EXCEEDED where some are left.
  absl::Status Drain(Clock::time_point deadline);

  /// Refuses new requests, ends accepted ones with UNAVAILABLE and jobs with CANCELLED, stops the
  /// thread. Repeatable.
  void Shutdown();

 private:
  class Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ripplekv
