#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"

namespace ripplekv {

/// Why a request never ran or was ended unserved.
enum class RefusalReason {
  kInvalid,        // INVALID_ARGUMENT and the like
  kTooLarge,       // can never fit
  kQueueFull,      // --max-queue
  kQueueTimeout,   // waited too long
  kContextMemory,  // no room for another context
  kShuttingDown,
};

/// What the engine's loop did, in this order: a decode step, then at most one slice of a prefill or
/// of a background job. Further short slices before the next step have records of their own.
struct StepRecord {
  int decode_rows = 0;  // sequences that got a token; 0: no decode step
  double decode_seconds = 0;
  enum class Slice { kNone, kPrefillChunk, kPrefillCompaction, kLogits, kBackground };
  Slice slice = Slice::kNone;
  double slice_seconds = 0;
};

/// Counters and histograms of the engine. Calls come from the engine's thread, OnRefused from the
/// submitting one; they must be quick and thread-safe. Only
/// Shutdown ends them: a request may have ended, and Drain returned, a call earlier.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  /// Submit answered `status`, or the request ended while it waited: it never ran.
  virtual void OnRefused(RefusalReason /*reason*/, const absl::Status& /*status*/) {}
  /// A request got its pages and starts.
  virtual void OnAdmitted() {}
  virtual void OnStep(const StepRecord& /*step*/) {}
  /// Bounded growth compacted so many layers of one sequence.
  virtual void OnCompaction(int64_t /*layers*/) {}
  virtual void OnQueueTime(double /*seconds*/) {}
  /// The prompt is in the cache: of prompt_tokens * layers positions (per KV head) so many were
  /// kept.
  virtual void OnPrefill(int64_t /*prompt_tokens*/, int64_t /*kept_positions*/,
                         int64_t /*dropped_positions*/) {}
  virtual void OnFirstToken(double /*seconds_since_submit*/) {}
  virtual void OnTokenInterval(double /*seconds*/) {}
  virtual void OnNextTokenKl(double /*nats*/, double /*floor_nats*/) {}
  /// An accepted request is over; OK where it completed.
  virtual void OnRequestEnd(const absl::Status& /*status*/, int64_t /*prompt_tokens*/,
                            int64_t /*completion_tokens*/) {}
};

struct LayerStats {
  size_t used_bytes = 0;
  size_t reserved_bytes = 0;
  size_t quota_bytes = 0;
};

/// The engine's gauges at the end of its latest step.
struct EngineStats {
  int64_t running = 0;     // requests at work, prefilling or decoding
  int64_t prefilling = 0;  // of which so many are still at their prompt
  int64_t queued = 0;
  int64_t background_jobs = 0;
  std::vector<LayerStats> layers;
  size_t kv_total_bytes = 0;       // --kv-memory
  size_t kv_used_bytes = 0;        // pages in use and the prefill layer
  size_t kv_reserved_bytes = 0;    // promised to running requests, not yet used
  size_t prefill_layer_bytes = 0;  // of kv_used_bytes
  int64_t pages = 0;               // of the arena
  int64_t free_pages = 0;          // neither used nor reserved
  size_t work_total_bytes = 0;     // --work-memory
  size_t work_reserved_bytes = 0;
  int64_t contexts = 0;
  size_t context_bytes = 0;      // of kv_used_bytes
  int64_t contexts_evicted = 0;  // since the start
  int64_t contexts_expired = 0;
};

}  // namespace ripplekv
