#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "calibration/background_job.h"
#include "calibration/calibration_examples.h"
#include "calibration/calibration_listener.h"
#include "calibration/calibration_record.h"
#include "calibration/profile.h"
#include "calibration/profile_store.h"
#include "calibration/sensitivity_probe.h"

namespace ripplekv {

/// What one measurement needs.
struct CalibrationJobSpec {
  int64_t number = 0;  // gives the id
  Profile profile;     // complete but for its results
  CalibrationExamples examples;
  int threads = 1;  // for the run's record
  std::shared_ptr<ProfileStore> store;
  /// Called in the first Step, on the thread that owns the model.
  std::function<absl::StatusOr<std::unique_ptr<SensitivityProbe>>(
      const CalibrationSettings& settings, CalibrationExamples examples)>
      make_probe;
  std::function<void(const CalibrationResult& result)> on_profile;  // after the store; may be empty
  /// Once, as soon as the end is certain: before OnDone, or when the job is cancelled. May be
  /// empty.
  std::function<void(const CalibrationRecord& record)> on_over;
  /// After on_over where there is no profile: it failed, or was CANCELLED. May be empty.
  std::function<void(const absl::Status& status)> on_failure;
};

/// One measurement and its listeners. Step() and the destructor belong to the thread that runs
/// jobs, everything else to any thread. Destroyed before its end, it ends with CANCELLED.
///
/// Its state is decided once, under the lock; a cancelled job's listeners hear of it in the next
/// Step.
class CalibrationJob final : public BackgroundJob {
 public:
  explicit CalibrationJob(CalibrationJobSpec spec);
  ~CalibrationJob() override;

  absl::Status Step() override;
  bool done() const override;

  const std::string& id() const { return id_; }
  int64_t number() const { return spec_.number; }
  /// Of the profile.
  const ProfileKey& key() const { return spec_.profile.key; }

  /// A listener is about to be added: the job is not cancelled before. `detach`: it goes on when
  /// nobody listens, from now on. False where it was cancelled already.
  bool Hold(bool detach);
  /// After Hold. The listener hears what comes from now on; OnDone at once where the job is over.
  void AddListener(std::shared_ptr<CalibrationListener> listener);
  /// Cancels the job when nobody is left and nobody detached it.
  void RemoveListener(const CalibrationListener* listener);
  /// Ends the job with CANCELLED and this message; what is told of it from now on.
  /// FAILED_PRECONDITION with its state where it has ended, or stores its profile already.
  absl::StatusOr<CalibrationRecord> Cancel(const std::string& reason);

  CalibrationRecord record() const;

 private:
  using Clock = std::chrono::steady_clock;

  /// One slice of the measurement; a finished one is stored.
  absl::Status Measure();
  void ReportProgress();
  /// False where the job was cancelled while the last slice ran.
  bool BeginStoring();
  absl::StatusOr<CalibrationResult> Result() const;
  void End(absl::StatusOr<CalibrationResult> outcome);
  /// Decides the job's end; call with mutex_ held while it runs. What to Announce.
  CalibrationRecord CloseLocked(JobState state, const absl::Status& status);
  void Announce(const CalibrationRecord& record);
  void TellListeners(const absl::StatusOr<CalibrationResult>& outcome);
  CalibrationRecord RecordLocked() const;

  CalibrationJobSpec spec_;
  const std::string id_;
  const Clock::time_point started_;

  // Only Step() touches these.
  std::unique_ptr<SensitivityProbe> probe_;
  Clock::time_point reported_;
  int reported_examples_ = 0;

  mutable std::mutex mutex_;
  CalibrationRecord record_;  // but for listeners and, while it runs, the time
  std::vector<std::shared_ptr<CalibrationListener>> listeners_;
  int held_ = 0;                                              // listeners about to be added
  bool storing_ = false;                                      // nothing cancels it any more
  std::optional<absl::StatusOr<CalibrationResult>> outcome_;  // what listeners hear, once they do
};

}  // namespace ripplekv
