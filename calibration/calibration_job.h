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
#include "calibration/calibration_listener.h"
#include "calibration/profile.h"
#include "calibration/profile_store.h"
#include "calibration/sensitivity_probe.h"

namespace ripplekv {

/// What one measurement needs.
struct CalibrationJobSpec {
  std::string id;
  Profile profile;  // complete but for its results
  std::vector<std::vector<int32_t>> examples;
  int threads = 1;  // for the run's record
  std::shared_ptr<ProfileStore> store;
  /// Called in the first Step, on the thread that owns the model.
  std::function<absl::StatusOr<std::unique_ptr<SensitivityProbe>>(
      const CalibrationSettings& settings, std::vector<std::vector<int32_t>> examples)>
      make_probe;
  std::function<void(const CalibrationResult& result)> on_profile;  // after the store; may be empty
  std::function<void()> on_over;  // before OnDone, and when the job is cancelled
  /// After on_over where there is no profile: it failed, or was CANCELLED. May be empty.
  std::function<void(const absl::Status& status)> on_failure;
};

/// One measurement and its listeners. Step() and the destructor belong to the thread that runs
/// jobs, everything else to any thread. Destroyed before its end, it ends with CANCELLED.
class CalibrationJob final : public BackgroundJob {
 public:
  explicit CalibrationJob(CalibrationJobSpec spec);
  ~CalibrationJob() override;

  absl::Status Step() override;
  bool done() const override;

  const std::string& id() const { return spec_.id; }
  /// Of the profile.
  const ProfileKey& key() const { return spec_.profile.key; }

  /// A listener is about to be added: the job is not cancelled before. `detach`: it goes on when
  /// nobody listens, from now on. False where it was cancelled already.
  bool Hold(bool detach);
  /// After Hold. The listener hears what comes from now on; OnDone at once where the job is over.
  void AddListener(std::shared_ptr<CalibrationListener> listener);
  /// Cancels the job when nobody is left and nobody detached it.
  void RemoveListener(const CalibrationListener* listener);

  CalibrationProgress progress() const;

 private:
  using Clock = std::chrono::steady_clock;

  CalibrationProgress ProgressLocked() const;
  void ReportProgress();
  absl::StatusOr<CalibrationResult> Result() const;
  void End(absl::StatusOr<CalibrationResult> outcome);

  CalibrationJobSpec spec_;
  const Clock::time_point started_;
  const std::string started_at_;  // UTC, RFC 3339

  // Only Step() touches these.
  std::unique_ptr<SensitivityProbe> probe_;
  Clock::time_point reported_;
  int reported_examples_ = 0;

  mutable std::mutex mutex_;
  ProbeProgress progress_;
  std::vector<std::shared_ptr<CalibrationListener>> listeners_;
  int held_ = 0;  // listeners about to be added
  bool detached_ = false;
  bool cancelled_ = false;
  std::optional<absl::StatusOr<CalibrationResult>> outcome_;
};

}  // namespace ripplekv
