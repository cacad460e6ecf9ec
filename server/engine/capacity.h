#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "calibration/policy/plan.h"
#include "kernels/kv_page.h"
#include "model/model_config.h"
#include "server/kv/page_arena.h"

namespace ripplekv {

/// How an engine divides its KV memory.
struct KvDivision {
  KvPageLayout layout;  // of rows of the plan's own types
  PageArenaOptions arena;
};

/// A page holds Engine::kRowsPerPage rows of `stored` (plans_choose_types:
/// Engine::kInt4RowsPerPage rows of int4); what is computed is of type `computed`.
/// INVALID_ARGUMENT: the memory cannot hold one layer of the longest prompt and a page in every
/// layer (says how much would do).
absl::StatusOr<KvDivision> DivideKvMemory(const ModelConfig& config, KvTypes stored,
                                          KvType computed, size_t kv_memory_bytes,
                                          int32_t max_prompt_tokens, bool plans_choose_types);

/// Activations of the prefill of a whole prompt, over no context.
size_t PromptWorkBytes(const ModelConfig& config, KvType computed, const Plan& plan,
                       const LayerBudgets& budgets, int64_t prompt_tokens, int threads);

/// Memory and requests to reckon with.
struct CapacityQuestion {
  size_t kv_memory_bytes = 0;
  size_t work_memory_bytes = 0;
  int max_batch = 0;
  int64_t growth_cap = 0;
  int threads = 0;                  // that compute
  bool plans_choose_types = false;  // EngineOptions
  int64_t prompt_tokens = 0;
  // Absent: what a request gets that does not say.
  std::optional<int64_t> max_tokens;
};

/// How many equal requests over no context run at once.
struct Capacity {
  int64_t requests = 0;  // the least of the next two and max_batch
  int64_t by_kv_memory = 0;
  int64_t by_work_memory = 0;
  int64_t max_tokens = 0;  // of a request
  int64_t request_pages = 0;
  int64_t pages = 0;
  size_t page_bytes = 0;
  size_t prefill_layer_bytes = 0;  // that all prefills share
  size_t request_work_bytes = 0;   // while its prompt is read
};

/// What admission would do. INVALID_ARGUMENT starts with prompt_tokens, output_tokens or
/// memory_bytes: out of the model's context, or as DivideKvMemory.
absl::StatusOr<Capacity> CapacityFor(const ModelConfig& config, KvType computed, const Plan& plan,
                                     const CapacityQuestion& question);

}  // namespace ripplekv
