#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "calibration/background_job.h"
#include "calibration/calibration_examples.h"
#include "calibration/calibration_job.h"
#include "calibration/calibration_listener.h"
#include "calibration/calibration_record.h"
#include "calibration/corpus.h"
#include "calibration/profile.h"
#include "calibration/profile_store.h"
#include "calibration/sensitivity_probe.h"
#include "calibration/settings.h"

namespace ripplekv {

struct CalibrationRequest {
  CalibrationSettings settings;
  // The name of a corpus (empty: the default one), or the texts themselves.
  std::variant<std::string, std::vector<std::string>> corpus;
  bool force = false;   // measure although a finished profile is stored
  bool detach = false;  // go on when nobody listens any more
};

/// What is measured, and by whom.
struct CalibratorOptions {
  std::string model_fingerprint;  // SHA-256 of the checkpoint, 64 lower-case hex digits
  std::string model_name;
  std::string compute_type;  // "fp32" or "bf16"
  int layers = 0;
  int64_t context_length = 0;
  int threads = 1;
  std::string software_version;
};

/// What a calibrator works with.
struct CalibratorParts {
  std::shared_ptr<ProfileStore> store;
  std::function<absl::StatusOr<Corpus>(std::string_view name)> find_corpus;
  std::function<absl::StatusOr<std::vector<int32_t>>(std::string_view text)> tokenize;
  /// Called within a job's Step: on the thread that owns the model.
  std::function<absl::StatusOr<std::unique_ptr<SensitivityProbe>>(
      const CalibrationSettings& settings, CalibrationExamples examples)>
      make_probe;
  /// Has a job's slices run.
  std::function<absl::Status(std::shared_ptr<BackgroundJob> job)> submit;
  /// A profile was measured and stored; its listeners hear next. Within a job's Step. May be empty.
  std::function<void(const CalibrationResult& result)> on_profile;
  /// A measurement ended without a profile: it failed, or was CANCELLED by Cancel, as nobody waited
  /// for it or as the server stopped. On any thread. May be empty.
  std::function<void(const std::string& job_id, const absl::Status& status)> on_failure;
};

inline constexpr size_t kRememberedJobs = 64;

/// Measurements of one model: at most one runs, identical requests share it, finished ones come
/// from the store. Thread-safe.
class Calibrator {
 public:
  Calibrator(CalibratorOptions options, CalibratorParts parts);
  /// Running measurements go on; whoever runs the job ends them.
  ~Calibrator();
  Calibrator(const Calibrator&) = delete;
  Calibrator& operator=(const Calibrator&) = delete;

  /// Starts or joins a measurement, or hands out the stored profile (OnStarted and OnDone within
  /// this call). Returns the job's id (empty: from the store). After an error the listener hears
  /// nothing: INVALID_ARGUMENT for settings and texts (field, value, range), find_corpus's errors,
  /// RESOURCE_EXHAUSTED while another measurement runs, `submit`'s.
  absl::StatusOr<std::string> Start(const CalibrationRequest& request,
                                    std::shared_ptr<CalibrationListener> listener);

  /// The listener hears no more, but for a call that is under way. A measurement that nobody
  /// listens to, and that nobody detached, stops within one slice. Unknown ids and listeners are
  /// ignored, and those of a cancelled job, whose listeners hear so in its next slice.
  void Leave(std::string_view job_id, const CalibrationListener* listener);

  /// Ends the running measurement within one slice: its listeners hear CANCELLED with `reason`, and
  /// another one may start at once. What is told of it from now on. NOT_FOUND where no such job is
  /// remembered, FAILED_PRECONDITION naming the state of one that has ended or is about to.
  absl::StatusOr<CalibrationRecord> Cancel(std::string_view job_id, const std::string& reason);

  /// The running measurement, then the last kRememberedJobs that ended, the newest first.
  std::vector<CalibrationRecord> List() const;

  /// Where the running measurement stands; unset where none runs.
  std::optional<CalibrationProgress> running() const;

  /// What a profile of these settings and this corpus is stored under.
  ProfileKey KeyOf(const CalibrationSettings& settings, const Corpus& corpus) const;

 private:
  /// The running job, if any, and those that ended. Jobs outlive the calibrator at times, so they
  /// share it.
  struct Registry {
    std::mutex mutex;
    std::weak_ptr<CalibrationJob> job;  // whoever runs jobs owns it
    int64_t number = 0;                 // of the newest job
    std::deque<CalibrationRecord> ended;

    void OnOver(const CalibrationRecord& record);
  };

  absl::StatusOr<Corpus> CorpusOf(const CalibrationRequest& request) const;
  /// Unset where there is none.
  absl::StatusOr<std::optional<CalibrationResult>> Stored(const ProfileKey& key);
  absl::StatusOr<std::shared_ptr<CalibrationJob>> NewJob(const ProfileKey& key,
                                                         const Corpus& corpus);
  absl::Status Submit(const std::shared_ptr<CalibrationJob>& job);
  std::shared_ptr<CalibrationJob> RunningJob() const;

  const CalibratorOptions options_;
  const CalibratorParts parts_;
  const std::shared_ptr<Registry> registry_;
  std::mutex start_mutex_;    // one Start decides at a time
  int64_t jobs_started_ = 0;  // guarded by start_mutex_
};

}  // namespace ripplekv
