#pragma once

#include <cstdint>
#include <vector>

namespace ripplekv {

/// What the engine does in one turn of its loop: a decode step, then at most one slice of other
/// work.
struct StepPlan {
  enum class Slice { kNone, kTask, kBackground };

  std::vector<int64_t> decode;  // tasks that get a token, by id, ascending
  Slice slice = Slice::kNone;
  int64_t task = -1;  // whose slice, for kTask

  bool empty() const { return decode.empty() && slice == Slice::kNone; }
  bool operator==(const StepPlan&) const = default;
};

/// A task that has work to do before (or instead of) decoding: a prompt, or continuations to score.
struct SlicedTaskView {
  int64_t id = 0;
  int64_t remaining_work = 0;  // multiply-adds, or any unit that all tasks share; at least 1
  int64_t layer_work = 0;      // of the layer that is next, or under way; at least 1
  bool holds_layer = false;    // between two slices of one layer: nobody else may start one
};

/// What the scheduler knows of the engine.
struct SchedulerView {
  std::vector<int64_t> decoding;       // ids, ascending
  std::vector<SlicedTaskView> sliced;  // in the order of admission
  bool background = false;             // a job has a slice to run
};

}  // namespace ripplekv
