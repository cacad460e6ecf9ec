#pragma once

#include <memory>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "calibration/policy/plan.h"
#include "model/model_config.h"
#include "server/engine/context_task.h"
#include "server/engine/engine_observer.h"
#include "server/engine/task.h"
#include "server/engine/work_memory.h"
#include "server/kv/layer_pool.h"
#include "server/kv/page_arena.h"

namespace ripplekv {

/// All memory that requests hold: KV pages and their pools, the contexts' rows, and the account of
/// activations. Used by the engine's thread only; outlives what it hands out.
class EngineMemory {
 public:
  /// The registry outlives it.
  EngineMemory(const ModelConfig& config, std::unique_ptr<PageArena> arena, size_t work_bytes,
               ContextRegistry* registry);

  /// Everything that a request will ever need, or nothing: pages in every layer, activations, and
  /// for a context to be made its share of the budget. Contexts that nobody uses give way only
  /// where the request would not fit beside them even if it were alone, and would fit beside those
  /// in `used` and its own. UNAVAILABLE: no room now. Another error ends the request.
  absl::StatusOr<TaskHoldings> Hold(const QueuedRequest& request,
                                    std::set<const ContextRows*> used);
  /// Frees the rows of contexts that are gone from the registry.
  void FreeRemovedContexts();
  void FreeAllContexts() { contexts_.clear(); }

  /// Shares the pages out among the pools as the plan does the bytes of the longest prompt.
  void SetQuotas(const Plan& plan);
  /// server/kv/invariants.h over these caches and the contexts'.
  absl::Status Check(std::vector<const SequenceCache*> caches) const;
  void FillStats(EngineStats& stats) const;

  PageArena* arena() { return arena_.get(); }
  ContextStore* contexts() { return &contexts_; }

 private:
  int64_t ContextPages() const;

  const ModelConfig config_;
  const std::unique_ptr<PageArena> arena_;
  std::vector<LayerPool> pools_;
  WorkMemory work_;
  ContextRegistry* const registry_;
  ContextStore contexts_;
};

}  // namespace ripplekv
