#include "server/engine/engine_memory.h"

#include <string>
#include <utility>

#include "server/kv/invariants.h"

namespace ripplekv {

EngineMemory::EngineMemory(const ModelConfig& config, std::unique_ptr<PageArena> arena,
                           size_t work_bytes, ContextRegistry* registry)
    : config_(config),
      arena_(std::move(arena)),
      pools_(MakeLayerPools(config.layers, arena_.get())),
      work_(work_bytes),
      registry_(registry) {}

absl::StatusOr<TaskHoldings> EngineMemory::Hold(const QueuedRequest& request,
                                                std::set<const ContextRows*> used) {
  absl::StatusOr<WorkReservation> work = work_.Reserve(request.work_bytes);
  if (!work.ok()) return absl::UnavailableError("");

  const ContextRows* context = nullptr;
  if (request.context() != nullptr) {
    const auto it = contexts_.find(request.context()->id());
    if (it == contexts_.end()) return absl::InternalError("the context's rows are gone");
    context = &it->second;
    used.insert(context);
  }

  const Admission& admission = request.admission;
  int64_t used_pages = 0;
  for (const ContextRows* rows : used) used_pages += rows->pages();
  if (admission.pages + used_pages <= arena_->pages()) {
    while (admission.pages + ContextPages() > arena_->pages() &&
           registry_->EvictOne(Clock::now())) {
      FreeRemovedContexts();
    }
  }

  absl::StatusOr<SequenceCache> cache =
      context == nullptr ? SequenceCache::Reserve(absl::MakeSpan(pools_), admission.layouts,
                                                  admission.capacity_rows)
                         : SequenceCache::ReserveOver(context->cache, absl::MakeSpan(pools_),
                                                      admission.capacity_rows);
  if (!cache.ok()) return absl::UnavailableError("");
  TaskHoldings holdings = {
      .cache = *std::move(cache), .work = *std::move(work), .context = context, .slot = {}};
  if (request.reference) {
    const std::vector<int64_t> rows(pools_.size(), request.prompt_tokens());
    absl::StatusOr<SequenceCache> full =
        SequenceCache::Reserve(absl::MakeSpan(pools_), FullCacheLayout(admission.layouts[0]), rows);
    if (!full.ok()) return absl::UnavailableError("");
    holdings.full_cache = *std::move(full);
  }
  if (std::holds_alternative<ContextWork>(request.work)) {
    auto slot = registry_->Reserve(admission.pages * static_cast<int64_t>(arena_->page_bytes()) +
                                       ContextTask::KeptBytes(config_, request.prompt_tokens()),
                                   Clock::now());
    if (!slot.ok()) return slot.status();
    holdings.slot = *std::move(slot);
  }
  return holdings;
}

void EngineMemory::FreeRemovedContexts() {
  registry_->ExpireIdle(Clock::now());
  for (const std::string& id : registry_->TakeRemoved()) contexts_.erase(id);
}

int64_t EngineMemory::ContextPages() const {
  int64_t pages = 0;
  for (const auto& [id, rows] : contexts_) pages += rows.pages();
  return pages;
}

void EngineMemory::SetQuotas(const Plan& plan) {
  const absl::StatusOr<LayerBudgets> budgets = plan.BudgetsFor(config_.context_length);
  if (!budgets.ok()) return;  // every request has to give its own size then
  std::vector<double> bytes;
  for (size_t l = 0; l < pools_.size(); ++l) {
    const size_t row =
        KvPageLayout::RowBytes(budgets->types[l], config_.kv_heads, config_.head_dim);
    bytes.push_back(static_cast<double>(budgets->layer[l]) * static_cast<double>(row));
  }
  ripplekv::SetQuotas(absl::MakeSpan(pools_), bytes);
}

absl::Status EngineMemory::Check(std::vector<const SequenceCache*> caches) const {
  for (const auto& [id, rows] : contexts_) caches.push_back(&rows.cache);
  return CheckKvInvariants(*arena_, pools_, caches);
}

void EngineMemory::FillStats(EngineStats& stats) const {
  stats.layers.reserve(pools_.size());
  for (const LayerPool& pool : pools_) {
    stats.layers.push_back({pool.used_bytes(), pool.reserved_bytes(), pool.quota_bytes()});
  }
  stats.kv_total_bytes = arena_->total_bytes();
  stats.kv_used_bytes = arena_->used_bytes();
  stats.kv_reserved_bytes = arena_->reserved_bytes();
  stats.prefill_layer_bytes = arena_->prefill_layer_used_bytes();
  stats.pages = arena_->pages();
  stats.free_pages = arena_->available_pages();
  stats.work_total_bytes = work_.total_bytes();
  stats.work_reserved_bytes = work_.reserved_bytes();
}

}  // namespace ripplekv
