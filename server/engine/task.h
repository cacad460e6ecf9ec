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
#include "server/engine/prefill.h"
#include "server/engine/queued_request.h"
#include "server/engine/step_plan.h"
#include "server/engine/work_memory.h"
#include "server/kv/sequence_cache.h"

namespace ripplekv {

/// A context's rows, and what follows its last token. Never changes.
struct ContextRows {
  SequenceCache cache;
  std::vector<float> logits;  // [vocab]

  int64_t pages() const {
    int64_t sum = 0;
    for (int l = 0; l < cache.layers(); ++l) sum += cache.own_pages(l);
    return sum;
  }
};

/// What tasks work with; the engine owns all of it.
struct TaskResources {
  Decoder* decoder = nullptr;
  const Tokenizer* tokenizer = nullptr;
  absl::Span<const int32_t> end_of_text;
  PageArena* arena = nullptr;
  KvPageLayout layout;  // in the server's own types
  DecodeStep* decode = nullptr;
  EngineObserver* observer = nullptr;  // may be null
};

/// What a task holds from its start to its end.
struct TaskHoldings {
  SequenceCache cache;
  std::optional<SequenceCache> full_cache{};  // Score with a reference
  WorkReservation work;
  const ContextRows* context = nullptr;  // pinned by the request's lease
  std::optional<ContextSlot> slot;       // of a context to be made
};

/// One request at work on the engine's thread: slices (a prompt's layers, scores), then perhaps
/// decode steps. Whatever happens, what it holds goes back when it dies. After an error of any
/// method the task is over.
class Task {
 public:
  Task(int64_t id, const TaskResources& resources, std::unique_ptr<QueuedRequest> request,
       TaskHoldings holdings);
  virtual ~Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  int64_t id() const { return id_; }
  const QueuedRequest& request() const { return *request_; }
  const SequenceCache& cache() const { return cache_; }
  /// All of the prompt's rows, beside the cache; null: not kept.
  const SequenceCache* full_cache() const {
    return full_cache_.has_value() ? &*full_cache_ : nullptr;
  }
  const ContextRows* context() const { return context_; }
  virtual bool done() const = 0;

  // Slices.
  virtual bool has_slice() const { return prefill_.has_value(); }
  virtual SlicedTaskView View() const;
  virtual StepRecord::Slice NextSlice() const;
  virtual absl::Status RunSlice();

  // Decode steps: Prepare, the step over Row, Accept with its logits [vocab].
  virtual bool decoding() const { return false; }
  virtual absl::Status Prepare() { return absl::OkStatus(); }
  virtual DecodeRow Row() { return {}; }
  virtual absl::Status Accept(absl::Span<const float> /*logits*/) { return absl::OkStatus(); }

  virtual int64_t completion_tokens() const { return 0; }
  /// After done(): tells the sink. The task's holdings are gone by then but for what it says.
  virtual void Complete() = 0;
  void Fail(const absl::Status& status) { request_->sink().OnError(status); }
  /// Gives pages and work memory back; the task is over.
  virtual void Release();

 protected:
  /// The prompt is through: its rows are in the cache, prefill_ is done and still there.
  virtual absl::Status OnPrefilled() = 0;

  void StartPrefill(const PrefillSpec& spec) { StartPrefill(spec, &cache_); }
  void StartPrefill(const PrefillSpec& spec, SequenceCache* cache);
  /// What the cache holds now that the prompt is through; the observer hears of it.
  CacheUsage NotePrefilled() const;
  int64_t context_tokens() const;
  int vocab() const { return resources_.decoder->config().vocab; }

  const int64_t id_;
  TaskResources resources_;
  std::unique_ptr<QueuedRequest> request_;
  SequenceCache cache_;
  std::optional<SequenceCache> full_cache_;
  WorkReservation work_;
  const ContextRows* context_;
  std::optional<ContextSlot> slot_;
  std::optional<Prefill> prefill_;  // at work
  size_t peak_prefill_bytes_ = 0;
  Clock::time_point started_;
  Timings timings_;
};

/// INTERNAL where a model gives logits that are no numbers.
absl::Status CheckFinite(absl::Span<const float> logits);

inline double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace ripplekv
