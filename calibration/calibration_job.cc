#include "calibration/calibration_job.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace ripplekv {
namespace {

/// Slices are short: listeners need not hear of each.
constexpr std::chrono::milliseconds kReportInterval(100);
constexpr char kNobodyWaits[] = "nobody waits for the calibration any more";

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

/// What an error of the profile directory is to a caller: a disk or quota that is full, or
/// something the operator has to mend. Never NOT_FOUND and the like, which are about what a request
/// names.
absl::StatusCode StorageCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:  // ENOSPC, EDQUOT
    case absl::StatusCode::kOutOfRange:         // EFBIG
      return absl::StatusCode::kResourceExhausted;
    case absl::StatusCode::kInvalidArgument:  // not the file system's
    case absl::StatusCode::kInternal:
      return absl::StatusCode::kInternal;
    default:
      return absl::StatusCode::kFailedPrecondition;
  }
}

}  // namespace

std::string CalibrationJobId(int64_t number) { return absl::StrCat("calibration-", number); }

const char* JobStateName(JobState state) {
  switch (state) {
    case JobState::kRunning:
      return "RUNNING";
    case JobState::kSucceeded:
      return "SUCCEEDED";
    case JobState::kFailed:
      return "FAILED";
    case JobState::kCancelled:
      return "CANCELLED";
  }
  return "";
}

CalibrationJob::CalibrationJob(CalibrationJobSpec spec)
    : spec_(std::move(spec)), id_(CalibrationJobId(spec_.number)), started_(Clock::now()) {
  record_.number = spec_.number;
  record_.profile_id = spec_.profile.id();
  record_.corpus_name = spec_.profile.corpus_name;
  record_.settings = key().settings;
  record_.progress.job_id = id_;
  record_.progress.probe.examples_total =
      static_cast<int>(spec_.examples.layers.size() + spec_.examples.sizes.size());
  record_.started_at = absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(), absl::UTCTimeZone());
}

CalibrationJob::~CalibrationJob() {
  if (!done()) {
    End(absl::UnavailableError(
        absl::StrCat("calibration ", id_,
                     " was stopped before its end: the server shuts down; ask again later")));
  }
}

bool CalibrationJob::done() const {
  const std::lock_guard lock(mutex_);
  return outcome_.has_value();
}

absl::Status CalibrationJob::Step() {
  absl::Status cancelled;
  {
    const std::lock_guard lock(mutex_);
    if (outcome_.has_value()) return absl::OkStatus();
    if (record_.state == JobState::kCancelled) cancelled = absl::CancelledError(record_.error);
  }
  if (!cancelled.ok()) {
    probe_.reset();
    TellListeners(cancelled);
    return absl::OkStatus();
  }
  try {
    return Measure();
  } catch (const std::exception& e) {
    // Left to the caller, it would look as if the server had dropped the job.
    probe_.reset();
    const absl::Status failed =
        absl::InternalError(absl::StrCat("a slice of the measurement failed: ", e.what()));
    End(failed);
    return failed;
  }
}

absl::Status CalibrationJob::Measure() {
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
    if (record_.state == JobState::kRunning) record_.progress.probe = probe_->progress();
  }
  ReportProgress();  // at the end too: whoever draws a bar sees it full
  if (!probe_->done() || !BeginStoring()) return absl::OkStatus();
  absl::StatusOr<CalibrationResult> result = Result();
  probe_.reset();
  if (result.ok() && spec_.on_profile) spec_.on_profile(*result);
  const absl::Status status = result.status();
  End(std::move(result));
  return status;
}

bool CalibrationJob::BeginStoring() {
  const std::lock_guard lock(mutex_);
  storing_ = record_.state == JobState::kRunning;
  return storing_;
}

void CalibrationJob::ReportProgress() {
  const Clock::time_point now = Clock::now();
  std::vector<std::shared_ptr<CalibrationListener>> listeners;
  CalibrationProgress progress;
  {
    const std::lock_guard lock(mutex_);
    if (record_.state != JobState::kRunning) return;
    const int examples = record_.progress.probe.examples_done;
    if (now - reported_ < kReportInterval && examples == reported_examples_) return;
    reported_ = now;
    reported_examples_ = examples;
    progress = RecordLocked().progress;
    listeners = listeners_;
  }
  for (const auto& listener : listeners) listener->OnProgress(progress);
}

absl::StatusOr<CalibrationResult> CalibrationJob::Result() const {
  CalibrationResult result;
  result.profile = spec_.profile;
  SummariseMeasurements(probe_->measurements(), result.profile);
  if (absl::Status s = ValidateProfile(result.profile); !s.ok()) {
    return absl::InternalError(
        absl::StrCat("calibration ", id_, " gave no usable profile: ", s.message()));
  }
  RunInfo run;
  run.started_at = record_.started_at;
  run.duration_seconds = std::chrono::duration<double>(Clock::now() - started_).count();
  run.host = HostName();
  run.threads = spec_.threads;
  result.run = run;
  if (absl::Status s = spec_.store->Put(result.profile, run); !s.ok()) {
    return absl::Status(
        StorageCode(s),
        absl::StrCat("calibration ", id_,
                     " finished but its profile cannot be stored: ", s.message(),
                     "; see that it has room and can be written, then calibrate again"));
  }
  return result;
}

void CalibrationJob::End(absl::StatusOr<CalibrationResult> outcome) {
  std::optional<CalibrationRecord> closed;
  {
    const std::lock_guard lock(mutex_);
    if (record_.state == JobState::kRunning) {
      const bool stopped =
          absl::IsCancelled(outcome.status()) || absl::IsUnavailable(outcome.status());
      closed = CloseLocked(outcome.ok() ? JobState::kSucceeded
                           : stopped    ? JobState::kCancelled
                                        : JobState::kFailed,
                           outcome.status());
    } else {  // cancelled meanwhile
      outcome = absl::CancelledError(record_.error);
    }
  }
  // The registry first: who asks from now on finds the stored profile, not this job.
  if (closed.has_value()) Announce(*closed);
  TellListeners(outcome);
}

CalibrationRecord CalibrationJob::CloseLocked(JobState state, const absl::Status& status) {
  record_.progress = RecordLocked().progress;  // the clock stops
  record_.state = state;
  record_.error_code = status.code();
  record_.error = std::string(status.message());
  return RecordLocked();
}

void CalibrationJob::Announce(const CalibrationRecord& record) {
  if (spec_.on_over) spec_.on_over(record);
  if (record.state == JobState::kSucceeded || !spec_.on_failure) return;
  spec_.on_failure(absl::Status(record.error_code, record.error));
}

void CalibrationJob::TellListeners(const absl::StatusOr<CalibrationResult>& outcome) {
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
  if (record_.state == JobState::kCancelled) return false;
  ++held_;
  record_.detached |= detach;
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
  CalibrationRecord closed;
  {
    const std::lock_guard lock(mutex_);
    const auto place = std::find_if(listeners_.begin(), listeners_.end(),
                                    [&](const auto& held) { return held.get() == listener; });
    if (place == listeners_.end()) return;
    listeners_.erase(place);
    if (!listeners_.empty() || held_ > 0 || record_.detached || storing_ ||
        record_.state != JobState::kRunning) {
      return;
    }
    closed = CloseLocked(JobState::kCancelled, absl::CancelledError(kNobodyWaits));
  }
  Announce(closed);
}

absl::StatusOr<CalibrationRecord> CalibrationJob::Cancel(const std::string& reason) {
  CalibrationRecord closed;
  {
    const std::lock_guard lock(mutex_);
    if (record_.state != JobState::kRunning) {
      return absl::FailedPreconditionError(absl::StrCat(
          "calibration ", id_, " has ended already: it is ", JobStateName(record_.state)));
    }
    if (storing_) {
      return absl::FailedPreconditionError(
          absl::StrCat("calibration ", id_, " is ", JobStateName(record_.state),
                       " but about to end: it has measured everything and stores its profile"));
    }
    closed = CloseLocked(JobState::kCancelled, absl::CancelledError(reason));
  }
  Announce(closed);
  return closed;
}

CalibrationRecord CalibrationJob::record() const {
  const std::lock_guard lock(mutex_);
  return RecordLocked();
}

CalibrationRecord CalibrationJob::RecordLocked() const {
  CalibrationRecord record = record_;
  if (record.state == JobState::kRunning) {
    record.progress.elapsed_seconds =
        std::chrono::duration<double>(Clock::now() - started_).count();
    record.listeners = static_cast<int>(listeners_.size()) + held_;
  }
  return record;
}

}  // namespace ripplekv
