#pragma once

#include <cstdint>

#include "server/engine/step_plan.h"

namespace ripplekv {

/// Decides what the engine's thread does next. Pure: knows tasks by id and measured times only, so
/// that no result of a request can depend on it.
///
/// - Every turn gives one token to every decoding sequence, and one slice goes between two such
///   steps, or several short ones: the engine asks for tasks' slices until they have taken as long
///   as the step did. A running request waits for one slice or one step's time, never for a prompt.
/// - Prompts change places at layer boundaries only (one layer of full K and V exists). There the
///   prompt with the least work left goes first, and the oldest one gets as much work as the others
///   did before it. So with c the largest layer's work among the prompts at work:
///     the oldest prompt finishes after at most 2 (its own work) + 2 c,
///     a prompt that stays the shortest finishes after at most 2 (its own work) + 3 c
///   of work since it was admitted, however many others come; and every prompt becomes the oldest,
///   as those before it finish. Ties go to the older one.
/// - Background slices get half of the time while there is other work (one runs once the other work
///   since the last slice has taken as long as that slice did), and all of it when there is none.
class Scheduler {
 public:
  StepPlan Next(const SchedulerView& view);

  /// What the plan took; other_seconds: the decode step and a task's slice.
  void Report(double other_seconds, double background_seconds);

 private:
  int64_t NextTask(const SchedulerView& view);

  int64_t oldest_ = -1;
  int64_t owed_work_ = 0;  // to the oldest: what others did since its last layer, at most one layer
  double last_background_seconds_ = 0;
  double other_seconds_ = 0;  // since the last background slice
};

}  // namespace ripplekv
