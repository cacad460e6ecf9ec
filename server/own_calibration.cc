#include "server/own_calibration.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ripplekv {

// What the thread here waits for. A measurement may outlive this object, and holds on to it.
struct OwnCalibration::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  bool stopping = false;
};

// One try's listener.
class OwnCalibration::Try final : public CalibrationListener {
 public:
  Try(std::shared_ptr<Shared> shared, PlanKeeper* plans, Log* log)
      : shared_(std::move(shared)), plans_(plans), log_(log) {}

  void OnStarted(const CalibrationStarted& started) override {
    const int examples = started.settings.examples + started.settings.sizes.examples;
    log_->Info("calibration_started", {{"job_id", started.job_id},
                                       {"profile_id", started.profile_id},
                                       {"examples", examples},
                                       {"joined", started.joined}});
    plans_->SetStatus(absl::StrCat("calibrating: 0 of ", examples, " examples"));
  }

  void OnProgress(const CalibrationProgress& progress) override {
    plans_->SetStatus(absl::StrCat("calibrating: ", progress.probe.examples_done, " of ",
                                   progress.probe.examples_total, " examples"));
    // A line each quarter.
    if (progress.probe.fraction < next_line_) return;
    next_line_ += 0.25;
    log_->Info("calibration_progress", {{"job_id", progress.job_id},
                                        {"examples_done", progress.probe.examples_done},
                                        {"examples_total", progress.probe.examples_total},
                                        {"seconds", progress.elapsed_seconds}});
  }

  void OnDone(const absl::StatusOr<CalibrationResult>& result) override {
    if (result.ok()) {
      if (result->from_store) plans_->Adopt(result->profile);
      // Adopted by now, unless the corpus is not what it was at the start.
      plans_->SetStatus(absl::StrCat("the profile measured, ", result->profile.id(),
                                     ", is not the one configured: the corpus's files have changed "
                                     "since this server started; start it again"));
    }
    End(result.ok() ? absl::OkStatus()
                    : absl::Status(result.status().code(), result.status().message()));
  }

  void End(absl::Status outcome) {
    const std::lock_guard lock(shared_->mutex);
    outcome_ = std::move(outcome);
    shared_->changed.notify_all();
  }

  // Unset when stopping.
  std::optional<absl::Status> Await() {
    std::unique_lock lock(shared_->mutex);
    shared_->changed.wait(lock, [this] { return shared_->stopping || outcome_.has_value(); });
    if (shared_->stopping) return std::nullopt;
    return outcome_;
  }

 private:
  const std::shared_ptr<Shared> shared_;
  PlanKeeper* const plans_;
  Log* const log_;
  double next_line_ = 0.25;
  std::optional<absl::Status> outcome_;  // guarded by shared_->mutex
};

OwnCalibration::OwnCalibration(CalibrationRequest request, Backoff backoff, Calibrator* calibrator,
                               PlanKeeper* plans, Log* log, Metrics* metrics)
    : request_(std::move(request)),
      backoff_(backoff),
      calibrator_(calibrator),
      plans_(plans),
      log_(log),
      metrics_(metrics),
      shared_(std::make_shared<Shared>()) {
  thread_ = std::thread([this, attempt = Start()] { Run(attempt); });
}

OwnCalibration::~OwnCalibration() {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->stopping = true;
    shared_->changed.notify_all();
  }
  thread_.join();
}

std::shared_ptr<OwnCalibration::Try> OwnCalibration::Start() {
  auto attempt = std::make_shared<Try>(shared_, plans_, log_);
  const absl::StatusOr<std::string> job = calibrator_->Start(request_, attempt);
  if (!job.ok()) {
    // That another measurement runs is no failure of this one.
    if (!absl::IsResourceExhausted(job.status())) {
      ReportCalibrationFailure("", job.status(), log_, metrics_);
    }
    attempt->End(job.status());
  }
  return attempt;
}

void OwnCalibration::Run(std::shared_ptr<Try> attempt) {
  for (;;) {
    const std::optional<absl::Status> outcome = attempt->Await();
    if (!outcome.has_value() || !GoesOn(*outcome) || !Pause(*outcome)) return;
    if (plans_->has_profile()) return;  // somebody else had it measured
    attempt = Start();
  }
}

bool OwnCalibration::GoesOn(const absl::Status& outcome) {
  if (outcome.ok() || absl::IsUnavailable(outcome)) return false;  // the process shuts down
  if (absl::IsCancelled(outcome)) {
    plans_->SetStatus(absl::StrCat(outcome.message(), "; measure it with CalibrateModel"));
    return false;
  }
  if (absl::IsInvalidArgument(outcome)) {
    plans_->SetStatus(absl::StrCat("calibration failed: ", outcome.message()));
    return false;
  }
  return true;
}

bool OwnCalibration::Pause(const absl::Status& outcome) {
  const std::chrono::milliseconds pause = backoff_.Next();
  const double seconds = std::chrono::duration<double>(pause).count();
  plans_->SetStatus(absl::StrCat("calibration failed: ", outcome.message(),
                                 " (it is tried again after ", seconds, " s)"));
  log_->Warning("calibration_retry", {{"code", absl::StatusCodeToString(outcome.code())},
                                      {"error", outcome.message()},
                                      {"pause_seconds", seconds}});
  std::unique_lock lock(shared_->mutex);
  return !shared_->changed.wait_for(lock, pause, [this] { return shared_->stopping; });
}

void ReportCalibrationFailure(const std::string& job_id, const absl::Status& status, Log* log,
                              Metrics* metrics) {
  if (absl::IsCancelled(status) || absl::IsUnavailable(status)) {  // by a caller, or at shutdown
    metrics->OnCalibration("cancelled", 0);
    log->Info("calibration_cancelled", {{"job_id", job_id}, {"reason", status.message()}});
    return;
  }
  metrics->OnCalibration("failed", 0);
  log->Error("calibration_failed", {{"job_id", job_id},
                                    {"code", absl::StatusCodeToString(status.code())},
                                    {"error", status.message()}});
}

}  // namespace ripplekv
