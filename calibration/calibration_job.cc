#include "calibration/calibration_job.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "calibration/statistics.h"

namespace ripplekv {
namespace {

/// Slices are short: listeners need not hear of each.
constexpr std::chrono::milliseconds kReportInterval(100);
constexpr char kNobodyWaits[] = "nobody waits for the calibration any more";

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

}  // namespace

CalibrationJob::CalibrationJob(CalibrationJobSpec spec)
    : spec_(std::move(spec)),
      started_(Clock::now()),
      started_at_(absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(), absl::UTCTimeZone())) {
  progress_.examples_total = static_cast<int>(spec_.examples.size());
}

CalibrationJob::~CalibrationJob() {
  if (!done()) {
    End(absl::CancelledError(
        absl::StrCat("calibration ", spec_.id,
                     " was stopped before its end: the server shuts down; ask again later")));
  }
}

bool CalibrationJob::done() const {
  const std::lock_guard lock(mutex_);
  return outcome_.has_value();
}

absl::Status CalibrationJob::Step() {
  {
    const std::lock_guard lock(mutex_);
    if (outcome_.has_value()) return absl::OkStatus();
    if (cancelled_) {
      outcome_ = absl::CancelledError(kNobodyWaits);
      return absl::OkStatus();
    }
  }
  if (probe_ == nullptr) {
    auto probe = spec_.make_probe(key().settings, std::move(spec_.examples));
    if (!probe.ok()) {
      End(probe.status());
      return probe.status();
    }
    probe_ = *std::move(probe);
  }
  if (absl::Status s = probe_->Step(); !s.ok()) {
    End(s);
    return s;
  }
  {
    const std::lock_guard lock(mutex_);
    progress_ = probe_->progress();
  }
  ReportProgress();  // at the end too: whoever draws a bar sees it full
  if (!probe_->done()) return absl::OkStatus();
  absl::StatusOr<CalibrationResult> result = Result();
  probe_.reset();
  if (result.ok() && spec_.on_profile) spec_.on_profile(*result);
  const absl::Status status = result.status();
  End(std::move(result));
  return status;
}

void CalibrationJob::ReportProgress() {
  const Clock::time_point now = Clock::now();
  std::vector<std::shared_ptr<CalibrationListener>> listeners;
  CalibrationProgress progress;
  {
    const std::lock_guard lock(mutex_);
    if (now - reported_ < kReportInterval && progress_.examples_done == reported_examples_) return;
    reported_ = now;
    reported_examples_ = progress_.examples_done;
    progress = ProgressLocked();
    listeners = listeners_;
  }
  for (const auto& listener : listeners) listener->OnProgress(progress);
}

absl::StatusOr<CalibrationResult> CalibrationJob::Result() const {
  const std::vector<std::vector<double>>& divergences = probe_->divergences();
  SensitivityStatistics statistics = SummariseSensitivity(divergences);
  CalibrationResult result;
  result.profile = spec_.profile;
  result.profile.examples_computed = static_cast<int>(divergences.size());
  result.profile.sensitivity = std::move(statistics.mean);
  result.profile.standard_error = std::move(statistics.standard_error);
  result.profile.split_half_spearman = statistics.split_half_spearman;
  if (absl::Status s = ValidateProfile(result.profile); !s.ok()) {
    return absl::InternalError(
        absl::StrCat("calibration ", spec_.id, " gave no usable profile: ", s.message()));
  }
  RunInfo run;
  run.started_at = started_at_;
  run.duration_seconds = std::chrono::duration<double>(Clock::now() - started_).count();
  run.host = HostName();
  run.threads = spec_.threads;
  result.run = run;
  if (absl::Status s = spec_.store->Put(result.profile, run); !s.ok()) {
    return absl::Status(s.code(),
                        absl::StrCat("calibration ", spec_.id,
                                     " finished but its profile cannot be stored: ", s.message()));
  }
  return result;
}

void CalibrationJob::End(absl::StatusOr<CalibrationResult> outcome) {
  // The registry first: who asks from now on finds the stored profile, not this job.
  if (spec_.on_over) spec_.on_over();
  if (!outcome.ok() && spec_.on_failure) spec_.on_failure(outcome.status());
  std::vector<std::shared_ptr<CalibrationListener>> listeners;
  {
    const std::lock_guard lock(mutex_);
    outcome_ = outcome;
    listeners.swap(listeners_);
  }
  for (const auto& listener : listeners) listener->OnDone(outcome);
}

bool CalibrationJob::Hold(bool detach) {
  const std::lock_guard lock(mutex_);
  if (cancelled_) return false;
  ++held_;
  detached_ |= detach;
  return true;
}

void CalibrationJob::AddListener(std::shared_ptr<CalibrationListener> listener) {
  {
    const std::lock_guard lock(mutex_);
    --held_;
    if (!outcome_.has_value()) {
      listeners_.push_back(std::move(listener));
      return;
    }
  }
  listener->OnDone(*outcome_);  // never changes once set
}

void CalibrationJob::RemoveListener(const CalibrationListener* listener) {
  {
    const std::lock_guard lock(mutex_);
    const auto place = std::find_if(listeners_.begin(), listeners_.end(),
                                    [&](const auto& held) { return held.get() == listener; });
    if (place == listeners_.end()) return;
    listeners_.erase(place);
    if (!listeners_.empty() || held_ > 0 || detached_ || outcome_.has_value()) return;
    cancelled_ = true;
  }
  if (spec_.on_over) spec_.on_over();
  if (spec_.on_failure) spec_.on_failure(absl::CancelledError(kNobodyWaits));
}

CalibrationProgress CalibrationJob::progress() const {
  const std::lock_guard lock(mutex_);
  return ProgressLocked();
}

CalibrationProgress CalibrationJob::ProgressLocked() const {
  CalibrationProgress progress;
  progress.job_id = spec_.id;
  progress.probe = progress_;
  progress.elapsed_seconds = std::chrono::duration<double>(Clock::now() - started_).count();
  return progress;
}

}  // namespace ripplekv
