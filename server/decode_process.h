#pragma once

#include <memory>

#include "calibration/calibrator.h"
#include "server/calibration_parts.h"
#include "server/engine/engine.h"
#include "server/rpc/calibration_service.h"
#include "server/rpc/decode_service.h"
#include "server/rpc/remote_calibration.h"
#include "server/serve.h"

namespace ripplekv {

// What stands behind ripplekv-server: the engine that generates, and calibration where
// --calibration says.
class DecodeProcess final : public Backend {
 public:
  // All pointers outlive this object; `store` is that of --profile-dir.
  DecodeProcess(const ServerOptions& options, std::shared_ptr<ProfileStore> store,
                Readiness* readiness, const Observers& observers);
  ~DecodeProcess() override;

  std::vector<grpc::Service*> services() override {
    return {&decode_service_, &calibration_service_};
  }
  absl::Status Load() override;
  void Drain(std::chrono::steady_clock::time_point deadline) override;
  void Stop() override;

 private:
  absl::Status StartEngine(LoadedModel loaded);
  void StartCalibration();
  void OpenServices(std::shared_ptr<const ModelInfo> model);

  const ServerOptions options_;
  const std::shared_ptr<ProfileStore> store_;
  Readiness* const readiness_;
  Log* const log_;
  Metrics* const metrics_;
  Slot<DecodeBackend> decode_slot_;
  Slot<CalibrationBackend> calibration_slot_;
  DecodeService decode_service_;
  CalibrationService calibration_service_;
  // In this order, so that each outlives what works with it.
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<PlanKeeper> plans_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Calibrator> calibrator_;  // --calibration embedded
  std::unique_ptr<OwnCalibration> own_;     // embedded, where no profile was stored at the start
  std::unique_ptr<RemoteCalibration>
      remote_;  // --calibration ADDRESS, while the profile is not there
};

}  // namespace ripplekv
