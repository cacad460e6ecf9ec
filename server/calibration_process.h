#pragma once

#include <memory>

#include "calibration/calibrator.h"
#include "server/calibration_parts.h"
#include "server/job_thread.h"
#include "server/rpc/calibration_service.h"
#include "server/serve.h"

namespace ripplekv {

// What stands behind ripplekv-calibration-server: the model, measured when asked for.
class CalibrationProcess final : public Backend {
 public:
  // All pointers outlive this object; `store` is that of --profile-dir.
  CalibrationProcess(const ServerOptions& options, std::shared_ptr<ProfileStore> store,
                     Readiness* readiness, const Observers& observers);
  ~CalibrationProcess() override;

  std::vector<grpc::Service*> services() override { return {&service_}; }
  absl::Status Load() override;
  void Drain(std::chrono::steady_clock::time_point deadline) override;
  void Stop() override;

 private:
  const ServerOptions options_;
  const std::shared_ptr<ProfileStore> store_;
  Readiness* const readiness_;
  Log* const log_;
  Metrics* const metrics_;
  Slot<CalibrationBackend> slot_;
  CalibrationService service_;
  // In this order, so that each outlives what works with it.
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<PlanKeeper> plans_;
  std::unique_ptr<JobThread> jobs_;
  std::unique_ptr<Calibrator> calibrator_;
};

}  // namespace ripplekv
