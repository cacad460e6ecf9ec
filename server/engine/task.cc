#include "server/engine/task.h"

#include <algorithm>
#include <utility>

#include "kernels/argmax.h"

namespace ripplekv {

absl::Status CheckFinite(absl::Span<const float> logits) {
  if (ArgMax(logits.data(), static_cast<int64_t>(logits.size())).finite) return absl::OkStatus();
  return absl::InternalError("the model's logits are not finite: the model file may be damaged");
}

Task::Task(int64_t id, const TaskResources& resources, std::unique_ptr<QueuedRequest> request,
           TaskHoldings holdings)
    : id_(id),
      resources_(resources),
      request_(std::move(request)),
      cache_(std::move(holdings.cache)),
      full_cache_(std::move(holdings.full_cache)),
      work_(std::move(holdings.work)),
      context_(holdings.context),
      slot_(std::move(holdings.slot)),
      started_(Clock::now()) {
  timings_.queue_seconds = Seconds(started_ - request_->submitted);
}

SlicedTaskView Task::View() const {
  return {.id = id_,
          .remaining_work = std::max<int64_t>(1, prefill_->remaining_work()),
          .layer_work = prefill_->layer_work(),
          .holds_layer = prefill_->holds_layer()};
}

StepRecord::Slice Task::NextSlice() const {
  return prefill_->ends_layer_next() ? StepRecord::Slice::kPrefillCompaction
                                     : StepRecord::Slice::kPrefillChunk;
}

absl::Status Task::RunSlice() {
  if (absl::Status status = prefill_->Step(); !status.ok()) return status;
  peak_prefill_bytes_ = std::max(peak_prefill_bytes_, prefill_->peak_bytes());
  if (!prefill_->done()) return absl::OkStatus();
  return OnPrefilled();
}

void Task::Release() {
  prefill_.reset();
  const SequenceCache gone = std::move(cache_);
  full_cache_.reset();
  const WorkReservation given_back = std::move(work_);
  slot_.reset();
}

void Task::StartPrefill(const PrefillSpec& spec, SequenceCache* cache) {
  prefill_.emplace(resources_.decoder, resources_.arena, cache, spec);
}

int64_t Task::context_tokens() const {
  return request_->context() == nullptr ? 0 : request_->context()->info().tokens;
}

CacheUsage Task::NotePrefilled() const {
  CacheUsage usage;
  int64_t kept = 0;
  const int64_t all = (context_tokens() + request_->prompt_tokens()) * cache_.layers();
  usage.full_bytes = static_cast<size_t>(all) * resources_.layout.RowBytes();
  for (int l = 0; l < cache_.layers(); ++l) {
    const KvPageLayout& layout = cache_.layout(l);
    usage.layers.push_back(
        {.positions = cache_.rows(l), .bytes = cache_.bytes(l), .types = layout.stored()});
    kept += cache_.rows(l);
    usage.kept_bytes += static_cast<size_t>(cache_.rows(l)) * layout.RowBytes();
  }
  usage.peak_prefill_bytes = peak_prefill_bytes_;
  if (resources_.observer != nullptr) {
    int64_t own = kept;
    for (int l = 0; l < cache_.layers(); ++l) own -= cache_.base_rows(l);
    resources_.observer->OnPrefill(request_->prompt_tokens(), own,
                                   request_->prompt_tokens() * cache_.layers() - own);
  }
  return usage;
}

}  // namespace ripplekv
