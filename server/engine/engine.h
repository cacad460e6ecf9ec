#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "calibration/background_job.h"
#include "calibration/policy/plan.h"
#include "kernels/kv_page.h"
#include "model/decoder.h"
#include "model/tokenizer.h"
#include "server/engine/engine_observer.h"
#include "server/engine/request.h"
#include "server/engine/request_handle.h"

namespace ripplekv {

struct EngineOptions {
  size_t kv_memory_bytes = size_t{256} << 20;
  int max_queue = 64;             // waiting requests, at least 1; beyond: RESOURCE_EXHAUSTED
  int32_t max_prompt_tokens = 0;  // 0: the model's context_length - 1; sizes the arena's prefill layer
  // After every step; a broken one fails the request with INTERNAL.
#ifdef NDEBUG
  bool check_invariants = false;
#else
  bool check_invariants = true;
#endif
};

/// Generates, one request at a time, on one thread of its own that owns the decoder, the page arena
/// and the sequences. All public methods may be called from any thread unless they say otherwise.
class Engine {
 public:
  static constexpr int kRowsPerPage = 32;

  /// The decoder's thread pool and `observer` (may be null) must outlive the engine. Decoder, pool
  /// and LibTorch belong to the engine's thread from here on. INVALID_ARGUMENT: kv_memory_bytes
  /// cannot hold one layer of the longest prompt and a page in every layer (says how much would
  /// do).
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
  /// kRetryLater; or the arena can never hold it: the message gives the figures and the largest
  /// request that fits), UNAVAILABLE (draining).
  absl::StatusOr<std::shared_ptr<RequestHandle>> Submit(GenerateRequest request,
                                                        std::shared_ptr<GenerationSink> sink);

  /// Adds a job. One Step runs whenever no request waits or runs, and at least one between two
  /// requests; several jobs take turns. The engine lets go of a job, on its own thread, when it is
  /// done, failed (a job reports its own error) or the engine shuts down. UNAVAILABLE when
  /// draining.
  absl::Status SubmitBackground(std::shared_ptr<BackgroundJob> job);

  /// The plan of requests submitted from now on.
  void SetPlan(std::shared_ptr<const Plan> plan);
  std::shared_ptr<const Plan> plan() const;

  EngineStats stats() const;
  const ModelConfig& config() const;
  int32_t max_prompt_tokens() const;
  /// How cached rows lie in a page: RowBytes() is what one position takes in a layer.
  const KvPageLayout& kv_layout() const;

  /// The decoder, for use within BackgroundJob::Step (the engine's thread) only.
  Decoder* decoder();

  /// Refuses new requests and waits until all accepted ones ended, at most until the deadline.
  /// DEADLINE_EXCEEDED where some are left.
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
