#include "server/engine/scheduler.h"

#include <algorithm>
#include <cassert>

namespace ripplekv {

StepPlan Scheduler::Next(const SchedulerView& view) {
  StepPlan plan;
  plan.decode = view.decoding;
  const bool other_work = !view.decoding.empty() || !view.sliced.empty();
  if (view.background && (!other_work || other_seconds_ >= last_background_seconds_)) {
    plan.slice = StepPlan::Slice::kBackground;
  } else if (!view.sliced.empty()) {
    plan.slice = StepPlan::Slice::kTask;
    plan.task = NextTask(view);
  }
  return plan;
}

int64_t Scheduler::NextTask(const SchedulerView& view) {
  for (const SlicedTaskView& task : view.sliced) {
    if (task.holds_layer) return task.id;
  }
  const SlicedTaskView& oldest = view.sliced.front();
  if (oldest.id != oldest_) {
    oldest_ = oldest.id;
    owed_work_ = 0;
  }
  // The first of the shortest is the oldest of them.
  const SlicedTaskView& shortest = *std::min_element(
      view.sliced.begin(), view.sliced.end(),
      [](const auto& a, const auto& b) { return a.remaining_work < b.remaining_work; });
  if (shortest.id == oldest.id || owed_work_ >= oldest.layer_work) {
    owed_work_ = std::max<int64_t>(0, owed_work_ - oldest.layer_work);
    return oldest.id;
  }
  owed_work_ += shortest.layer_work;
  return shortest.id;
}

void Scheduler::Report(double other_seconds, double background_seconds) {
  if (background_seconds > 0) {
    last_background_seconds_ = background_seconds;
    other_seconds_ = other_seconds;
  } else {
    other_seconds_ += other_seconds;
  }
}

}  // namespace ripplekv
