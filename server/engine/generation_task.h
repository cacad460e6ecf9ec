#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "model/decoder.h"
#include "model/tokenizer.h"
#include "server/engine/decode_step.h"
#include "server/engine/engine_observer.h"
#include "server/engine/output_stream.h"
#include "server/engine/prefill.h"
#include "server/engine/request_queue.h"
#include "server/engine/sampler.h"
#include "server/kv/sequence_cache.h"

namespace ripplekv {

/// What tasks work with; the engine owns all of it.
struct TaskResources {
  Decoder* decoder = nullptr;
  const Tokenizer* tokenizer = nullptr;
  absl::Span<const int32_t> end_of_text;
  PageArena* arena = nullptr;
  absl::Span<LayerPool> pools;
  KvPageLayout layout;
  EngineObserver* observer = nullptr;
};

/// One request at work: reserves its pages, then one prefill layer or one decode step a Step.
/// Whatever happens, its pages go back when it dies.
class GenerationTask {
 public:
  /// RESOURCE_EXHAUSTED where the arena has no room now; `request` is then left to the caller.
  static absl::StatusOr<std::unique_ptr<GenerationTask>> Start(
      const TaskResources& resources, std::unique_ptr<QueuedRequest>& request);

  /// Goes on by one layer or token. An error ends the request.
  absl::Status Step();

  /// All tokens are out: completion() is whole.
  bool done() const { return done_; }
  Completion completion() const { return completion_; }

  const QueuedRequest& request() const { return *request_; }
  const SequenceCache& cache() const { return cache_; }
  int64_t completion_tokens() const { return output_.tokens(); }

 private:
  GenerationTask(const TaskResources& resources, std::unique_ptr<QueuedRequest> request,
                 SequenceCache cache);
  absl::Status FinishPrefill();
  absl::Status MeasureNextTokenKl();
  absl::Status EmitToken();

  TaskResources resources_;
  std::unique_ptr<QueuedRequest> request_;
  SequenceCache cache_;
  std::optional<Prefill> prefill_;  // until the prompt is in the cache
  DecodeStep decode_;
  Sampler sampler_;
  OutputStream output_;
  std::vector<float> logits_;  // [vocab], of the next token
  int32_t last_token_ = -1;
  size_t arena_before_bytes_ = 0;
  Clock::time_point started_;
  Clock::time_point prefilled_;
  Clock::time_point last_emitted_;
  bool done_ = false;
  Completion completion_;
};

}  // namespace ripplekv
