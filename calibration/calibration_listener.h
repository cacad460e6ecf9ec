#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "calibration/profile.h"
#include "calibration/sensitivity_probe.h"
#include "calibration/settings.h"

namespace ripplekv {

struct CalibrationStarted {
  std::string job_id;      // empty where the profile was found in the store
  std::string profile_id;  // the profile has it, or will have it
  CalibrationSettings settings;
  bool joined = false;  // an identical measurement was running already
};

struct CalibrationProgress {
  std::string job_id;
  ProbeProgress probe;
  double elapsed_seconds = 0;  // since the measurement was asked for
};

struct CalibrationResult {
  Profile profile;
  std::optional<RunInfo> run;
  bool from_store = false;
};

/// Hears of one calibration: OnStarted first, any number of OnProgress, OnDone once and last. Calls
/// to one listener never overlap. They come from within Calibrator::Start or from the thread that
/// runs the job, which waits for them: they must not block. No lock is held over them; they may
/// call Calibrator::Leave, not Start.
class CalibrationListener {
 public:
  virtual ~CalibrationListener() = default;
  virtual void OnStarted(const CalibrationStarted& started) = 0;
  virtual void OnProgress(const CalibrationProgress& progress) = 0;
  /// CANCELLED: by Calibrator::Cancel. UNAVAILABLE: the process shuts down. Other errors say what
  /// failed.
  virtual void OnDone(const absl::StatusOr<CalibrationResult>& result) = 0;
};

}  // namespace ripplekv
