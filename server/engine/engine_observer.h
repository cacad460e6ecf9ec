#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"

namespace ripplekv {

/// Counters and histograms of the engine. Calls come from the engine's thread, OnRefused from the
/// submitting one; they must be quick and thread-safe.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  /// Submit answered `status`: the request never ran.
  virtual void OnRefused(const absl::Status& /*status*/) {}
  virtual void OnQueueTime(double /*seconds*/) {}
  /// The prompt is in the cache: of prompt_tokens * layers positions (per KV head) so many were
  /// kept.
  virtual void OnPrefill(int64_t /*prompt_tokens*/, int64_t /*kept_positions*/,
                         int64_t /*dropped_positions*/) {}
  virtual void OnFirstToken(double /*seconds_since_submit*/) {}
  virtual void OnTokenInterval(double /*seconds*/) {}
  virtual void OnNextTokenKl(double /*nats*/) {}
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
  int64_t running = 0;
  int64_t queued = 0;
  int64_t background_jobs = 0;
  std::vector<LayerStats> layers;
  size_t kv_total_bytes = 0;       // --kv-memory
  size_t kv_used_bytes = 0;        // pages in use and the prefill layer
  size_t kv_reserved_bytes = 0;    // promised to running requests, not yet used
  size_t prefill_layer_bytes = 0;  // of kv_used_bytes
};

}  // namespace ripplekv
