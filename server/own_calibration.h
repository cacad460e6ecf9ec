#pragma once

#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "calibration/calibrator.h"
#include "server/backoff.h"
#include "server/observe/log.h"
#include "server/observe/metrics.h"
#include "server/plan_keeper.h"

namespace ripplekv {

// Has this process measure the configured profile, which becomes the plan. A measurement that
// fails, or that cannot start as another one runs, is tried again after a pause; not so one that
// was cancelled, nor a request that is INVALID_ARGUMENT. Its course is told to the plans' status
// and the log.
class OwnCalibration {
 public:
  // Starts the first try before it returns. `request` is that of plans->key(). All pointers outlive
  // this object; plans and log outlive its measurement too.
  OwnCalibration(CalibrationRequest request, Backoff backoff, Calibrator* calibrator,
                 PlanKeeper* plans, Log* log, Metrics* metrics);
  // Stops trying. A measurement that runs goes on.
  ~OwnCalibration();
  OwnCalibration(const OwnCalibration&) = delete;
  OwnCalibration& operator=(const OwnCalibration&) = delete;

 private:
  class Try;
  struct Shared;

  // The listener of a try that began or came to nothing at once.
  std::shared_ptr<Try> Start();
  void Run(std::shared_ptr<Try> attempt);
  // Whether another try makes sense after this one; tells what comes next.
  bool GoesOn(const absl::Status& outcome);
  bool Pause(const absl::Status& outcome);  // false when stopping

  const CalibrationRequest request_;
  Backoff backoff_;
  Calibrator* const calibrator_;
  PlanKeeper* const plans_;
  Log* const log_;
  Metrics* const metrics_;
  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

// Tells the log and the metrics of a measurement that ended without a profile. `job_id` is empty
// where none was started.
void ReportCalibrationFailure(const std::string& job_id, const absl::Status& status, Log* log,
                              Metrics* metrics);

}  // namespace ripplekv
