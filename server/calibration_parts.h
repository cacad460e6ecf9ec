#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "calibration/background_job.h"
#include "calibration/calibrator.h"
#include "calibration/corpus.h"
#include "calibration/profile_store.h"
#include "server/loaded_model.h"
#include "server/observe/log.h"
#include "server/observe/metrics.h"
#include "server/options.h"
#include "server/own_calibration.h"
#include "server/plan_keeper.h"

namespace ripplekv {

// Opens the profile directory, telling the log and the metrics of files that are not used.
// FAILED_PRECONDITION or PERMISSION_DENIED name the directory.
absl::StatusOr<std::shared_ptr<ProfileStore>> OpenStore(const std::string& directory, Log* log,
                                                        Metrics* metrics);

// The plan that the options describe for the model, and the one measurement that may give its
// sensitivities; the stored profile of that measurement is adopted. INVALID_ARGUMENT: options that
// do not fit the model.
absl::StatusOr<std::unique_ptr<PlanKeeper>> MakePlans(const ServerOptions& options,
                                                      const ModelInfo& model, ProfileStore& store,
                                                      Log* log, Metrics* metrics);

// A calibrator of the loaded model. `decoder` answers the decoder that jobs work with, on the
// thread that runs them; `submit` has a job run. A profile of the configured settings becomes the
// plan. Plans, log and metrics outlive the calibrator and its jobs.
std::unique_ptr<Calibrator> MakeCalibrator(
    const ServerOptions& options, std::shared_ptr<const ModelInfo> model,
    std::shared_ptr<ProfileStore> store, std::function<Decoder*()> decoder,
    std::function<absl::Status(std::shared_ptr<BackgroundJob>)> submit, PlanKeeper* plans, Log* log,
    Metrics* metrics);

// Has the configured profile measured in this process.
std::unique_ptr<OwnCalibration> StartOwnCalibration(const ServerOptions& options,
                                                    Calibrator* calibrator, PlanKeeper* plans,
                                                    Log* log, Metrics* metrics);

}  // namespace ripplekv
