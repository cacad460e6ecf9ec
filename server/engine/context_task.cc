#include "server/engine/context_task.h"

#include <utility>

namespace ripplekv {

ContextTask::ContextTask(int64_t id, const TaskResources& resources,
                         std::unique_ptr<QueuedRequest> request, TaskHoldings holdings,
                         ContextRegistry* registry, ContextStore* store)
    : Task(id, resources, std::move(request), std::move(holdings)),
      registry_(registry),
      store_(store) {
  StartPrefill({.tokens = request_->prompt(),
                .keep = KeepRows::kCompact,
                .budgets = &request_->admission.budgets,
                .selector = request_->plan->selector(),
                .sinks = request_->plan->sinks()});
}

int64_t ContextTask::KeptBytes(const ModelConfig& config, int64_t tokens) {
  return int64_t{config.vocab} * static_cast<int64_t>(sizeof(float)) +
         tokens * static_cast<int64_t>(sizeof(int32_t));
}

absl::Status ContextTask::OnPrefilled() {
  std::vector<float> logits(static_cast<size_t>(vocab()));
  prefill_->LastLogits(logits.data());
  if (absl::Status status = CheckFinite(logits); !status.ok()) return status;
  const CacheUsage usage = NotePrefilled();
  prefill_.reset();
  const ContextRequest& request = work_item().request;
  auto origin = std::make_shared<ContextOrigin>();
  origin->tokens = request.prompt;
  origin->chat = request.chat;
  info_.tokens = request_->prompt_tokens();
  info_.layers = usage.layers;
  info_.kv_bytes = static_cast<int64_t>(usage.kept_bytes);
  info_.full_kv_bytes = static_cast<int64_t>(usage.full_bytes);
  info_.page_bytes =
      static_cast<int64_t>(cache_.bytes()) + KeptBytes(resources_.decoder->config(), info_.tokens);
  info_.created = std::chrono::system_clock::now();
  info_.origin = std::move(origin);
  info_.plan_profile_id = request_->plan->profile_id();
  const Clock::time_point now = Clock::now();
  info_.last_used = now;
  // The rows are there before anybody can ask for them: both belong to this thread.
  info_.id = request.key;
  info_.id = registry_->Add(*std::move(slot_), request.owner, info_, now);
  try {
    store_->emplace(info_.id, ContextRows{std::move(cache_), std::move(logits)});
  } catch (...) {
    registry_->Delete(request.owner, info_.id).IgnoreError();  // it was added a moment ago
    throw;
  }
  done_ = true;
  return absl::OkStatus();
}

void ContextTask::Complete() { work_item().sink->OnComplete(std::move(info_)); }

}  // namespace ripplekv
