#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "calibration/calibration_listener.h"
#include "calibration/settings.h"

namespace ripplekv {

enum class JobState {
  kRunning,
  kSucceeded,  // the profile is stored
  kFailed,
  kCancelled,
};

/// "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED".
const char* JobStateName(JobState state);

/// "calibration-<number>"
std::string CalibrationJobId(int64_t number);

/// What is told of a measurement, while it runs and afterwards.
struct CalibrationRecord {
  int64_t number = 0;  // from 1 in the order of starts
  std::string profile_id;
  std::string corpus_name;
  CalibrationSettings settings;
  JobState state = JobState::kRunning;
  CalibrationProgress progress;  // once it ended, what had been reached
  std::string started_at;        // UTC, RFC 3339
  int listeners = 0;             // who waits for it; 0 once it ended
  bool detached = false;
  // Where failed or cancelled, else kOk. Not an absl::Status, whose copies share memory.
  absl::StatusCode error_code = absl::StatusCode::kOk;
  std::string error;

  const std::string& job_id() const { return progress.job_id; }
};

}  // namespace ripplekv
