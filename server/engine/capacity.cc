#include "server/engine/capacity.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "calibration/row_selector.h"
#include "server/engine/admission.h"
#include "server/engine/engine.h"
#include "server/engine/generate_task.h"
#include "server/engine/prefill.h"

namespace ripplekv {

absl::StatusOr<KvDivision> DivideKvMemory(const ModelConfig& config, KvTypes stored,
                                          KvType computed, size_t kv_memory_bytes,
                                          int32_t max_prompt_tokens, bool plans_choose_types) {
  const size_t page_bytes =
      plans_choose_types
          ? KvPageLayout::BytesForRowsPerPage(KvType::kInt4, config.kv_heads, config.head_dim,
                                              Engine::kInt4RowsPerPage)
          : KvPageLayout::BytesForRowsPerPage(stored, config.kv_heads, config.head_dim,
                                              Engine::kRowsPerPage);
  KvDivision division;
  division.layout =
      KvPageLayout::For(stored, computed, config.kv_heads, config.head_dim, page_bytes);
  const size_t full_layer = static_cast<size_t>(max_prompt_tokens) * 2 *
                            static_cast<size_t>(config.kv_heads * config.head_dim) *
                            KvTypeBytes(computed);
  const size_t least =
      full_layer + 64 + static_cast<size_t>(config.layers) * division.layout.page_bytes;
  if (kv_memory_bytes < least) {
    return absl::InvalidArgumentError(absl::StrCat(
        "is ", kv_memory_bytes, " bytes: one full layer of a prompt of ", max_prompt_tokens,
        " tokens and a page in each of ", config.layers, " layers take ", least));
  }
  division.arena = {.total_bytes = kv_memory_bytes,
                    .page_bytes = division.layout.page_bytes,
                    .prefill_layer_bytes = full_layer};
  return division;
}

size_t PromptWorkBytes(const ModelConfig& config, KvType computed, const Plan& plan,
                       const LayerBudgets& budgets, int64_t prompt_tokens, int threads) {
  size_t bytes = Prefill::WorkBytes(config, computed, prompt_tokens);
  if (Prefill::Selects(budgets, prompt_tokens)) {
    bytes += RowSelector::WorkBytes(plan.selector(), config, computed, prompt_tokens, threads);
  }
  return bytes;
}

absl::StatusOr<Capacity> CapacityFor(const ModelConfig& config, KvType computed, const Plan& plan,
                                     const CapacityQuestion& question) {
  const int64_t longest = config.context_length - 1;
  if (question.prompt_tokens < 1 || question.prompt_tokens > longest) {
    return absl::InvalidArgumentError(absl::StrCat("prompt_tokens is ", question.prompt_tokens,
                                                   ": must be 1 to ", longest,
                                                   ", the model's context less one"));
  }
  const int64_t left = config.context_length - question.prompt_tokens;
  const int64_t max_tokens =
      question.max_tokens.value_or(std::min<int64_t>(StoppingParams::kDefaultMaxTokens, left));
  if (max_tokens < 1 || max_tokens > left) {
    return absl::InvalidArgumentError(absl::StrCat("output_tokens is ", max_tokens,
                                                   ": must be 1 to ", left,
                                                   ", what the prompt leaves of the context"));
  }
  const auto division =
      DivideKvMemory(config, plan.spec().kv_types, computed, question.kv_memory_bytes,
                     static_cast<int32_t>(longest), question.plans_choose_types);
  if (!division.ok()) {
    return absl::Status(division.status().code(),
                        absl::StrCat("memory_bytes ", division.status().message()));
  }
  const auto admission = PlanAdmission(plan,
                                       {.prompt_tokens = question.prompt_tokens,
                                        .max_tokens = max_tokens,
                                        .growth_cap = question.growth_cap},
                                       division->layout);
  if (!admission.ok()) return admission.status();

  Capacity capacity;
  capacity.max_tokens = max_tokens;
  capacity.page_bytes = division->arena.page_bytes;
  capacity.prefill_layer_bytes = division->arena.prefill_layer_bytes;
  capacity.pages = PageArena::PagesOf(division->arena);
  capacity.request_pages = admission->pages;
  capacity.by_kv_memory = capacity.pages / admission->pages;

  int64_t tracked_rows = 0;
  if (question.growth_cap > 0) {
    for (const int64_t rows : admission->capacity_rows) tracked_rows += rows;
  }
  // A request gives back what its prompt took once that is read: only the last one holds it.
  const size_t decoding = GenerateTask::WorkBytes(config, tracked_rows);
  capacity.request_work_bytes =
      decoding + PromptWorkBytes(config, computed, plan, admission->budgets, question.prompt_tokens,
                                 question.threads);
  if (capacity.request_work_bytes <= question.work_memory_bytes) {
    capacity.by_work_memory = static_cast<int64_t>(
        1 + (question.work_memory_bytes - capacity.request_work_bytes) / decoding);
  }
  capacity.requests = std::min<int64_t>(
      {capacity.by_kv_memory, capacity.by_work_memory, int64_t{question.max_batch}});
  return capacity;
}

}  // namespace ripplekv
