#include "server/rpc/calibration_service.h"

#include "absl/strings/str_cat.h"
#include "server/rpc/calibrate_stream.h"
#include "server/rpc/calibration_queries.h"
#include "server/rpc/plan_budgets.h"
#include "server/rpc/profile_queries.h"

namespace ripplekv {

CalibrationService::CalibrationService(const Slot<CalibrationBackend>* backend,
                                       const Observers& observers)
    : backend_(backend), observers_(observers) {
  DeclareMethods(
      *v1::CalibrateModelRequest::descriptor()->file()->FindServiceByName("CalibrationService"),
      observers.metrics);
}

grpc::ServerWriteReactor<v1::CalibrateModelResponse>* CalibrationService::CalibrateModel(
    grpc::CallbackServerContext* context, const v1::CalibrateModelRequest* request) {
  auto stream = std::make_shared<CalibrateStream>(context, observers_);
  stream->KeepUntilDone(stream);
  CalibrateStream::Start(stream, *backend_, *request);
  return stream.get();
}

grpc::ServerUnaryReactor* CalibrationService::ListCalibrations(
    grpc::CallbackServerContext* context, const v1::ListCalibrationsRequest* request,
    v1::ListCalibrationsResponse* response) {
  return AnswerUnary(context, observers_, "ListCalibrations", [&]() -> absl::Status {
    const auto backend = backend_->Get();
    return backend.ok() ? ripplekv::ListCalibrations(**backend, *request, response)
                        : backend.status();
  });
}

grpc::ServerUnaryReactor* CalibrationService::CancelCalibration(
    grpc::CallbackServerContext* context, const v1::CancelCalibrationRequest* request,
    v1::CancelCalibrationResponse* response) {
  return AnswerUnary(context, observers_, "CancelCalibration", [&]() -> absl::Status {
    const auto backend = backend_->Get();
    return backend.ok() ? ripplekv::CancelCalibration(**backend, *request, response)
                        : backend.status();
  });
}

grpc::ServerUnaryReactor* CalibrationService::GetProfile(grpc::CallbackServerContext* context,
                                                         const v1::GetProfileRequest* request,
                                                         v1::GetProfileResponse* response) {
  return AnswerUnary(context, observers_, "GetProfile", [&]() -> absl::Status {
    const auto backend = backend_->Get();
    return backend.ok() ? ripplekv::GetProfile(**backend, *request, response) : backend.status();
  });
}

grpc::ServerUnaryReactor* CalibrationService::ListProfiles(grpc::CallbackServerContext* context,
                                                           const v1::ListProfilesRequest* request,
                                                           v1::ListProfilesResponse* response) {
  return AnswerUnary(context, observers_, "ListProfiles", [&]() -> absl::Status {
    const auto backend = backend_->Get();
    return backend.ok() ? ripplekv::ListProfiles(**backend, *request, response) : backend.status();
  });
}

grpc::ServerUnaryReactor* CalibrationService::DeleteProfile(grpc::CallbackServerContext* context,
                                                            const v1::DeleteProfileRequest* request,
                                                            v1::DeleteProfileResponse*) {
  return AnswerUnary(context, observers_, "DeleteProfile", [&]() -> absl::Status {
    const auto backend = backend_->Get();
    return backend.ok() ? ripplekv::DeleteProfile(**backend, *request) : backend.status();
  });
}

grpc::ServerUnaryReactor* CalibrationService::PlanBudgets(grpc::CallbackServerContext* context,
                                                          const v1::PlanBudgetsRequest* request,
                                                          v1::PlanBudgetsResponse* response) {
  return AnswerUnary(context, observers_, "PlanBudgets", [&]() -> absl::Status {
    const auto backend = backend_->Get();
    return backend.ok() ? ripplekv::PlanBudgets(**backend, *request, response) : backend.status();
  });
}

}  // namespace ripplekv
