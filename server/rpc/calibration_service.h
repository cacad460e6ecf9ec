#pragma once

#include <memory>
#include <string>

#include "calibration/calibrator.h"
#include "calibration/profile_store.h"
#include "ripplekv/v1/calibration.grpc.pb.h"
#include "server/engine/engine.h"
#include "server/loaded_model.h"
#include "server/plan_keeper.h"
#include "server/rpc/call_record.h"
#include "server/rpc/plan_convert.h"
#include "server/rpc/slot.h"

namespace ripplekv {

// What CalibrationService works with once the model is loaded. Pointers outlive every call.
struct CalibrationBackend {
  std::shared_ptr<const ModelInfo> model;
  Calibrator* calibrator = nullptr;  // null: this process does not measure
  std::string no_calibrator;         // why, and what to do instead
  ProfileStore* store = nullptr;
  PlanKeeper* plans = nullptr;
  std::string corpus;  // configured
  PlanDefaults defaults;
  EngineOptions engine_options;  // what requests get here, or by default where none are served
  int threads = 1;               // that compute
};

// ripplekv.v1.CalibrationService.
class CalibrationService final : public v1::CalibrationService::CallbackService {
 public:
  // Both outlive the service.
  CalibrationService(const Slot<CalibrationBackend>* backend, const Observers& observers);

  grpc::ServerWriteReactor<v1::CalibrateModelResponse>* CalibrateModel(
      grpc::CallbackServerContext* context, const v1::CalibrateModelRequest* request) override;
  grpc::ServerUnaryReactor* ListCalibrations(grpc::CallbackServerContext* context,
                                             const v1::ListCalibrationsRequest* request,
                                             v1::ListCalibrationsResponse* response) override;
  grpc::ServerUnaryReactor* CancelCalibration(grpc::CallbackServerContext* context,
                                              const v1::CancelCalibrationRequest* request,
                                              v1::CancelCalibrationResponse* response) override;
  grpc::ServerUnaryReactor* GetProfile(grpc::CallbackServerContext* context,
                                       const v1::GetProfileRequest* request,
                                       v1::GetProfileResponse* response) override;
  grpc::ServerUnaryReactor* ListProfiles(grpc::CallbackServerContext* context,
                                         const v1::ListProfilesRequest* request,
                                         v1::ListProfilesResponse* response) override;
  grpc::ServerUnaryReactor* DeleteProfile(grpc::CallbackServerContext* context,
                                          const v1::DeleteProfileRequest* request,
                                          v1::DeleteProfileResponse* response) override;
  grpc::ServerUnaryReactor* PlanBudgets(grpc::CallbackServerContext* context,
                                        const v1::PlanBudgetsRequest* request,
                                        v1::PlanBudgetsResponse* response) override;

 private:
  const Slot<CalibrationBackend>* const backend_;
  const Observers observers_;
};

}  // namespace ripplekv
