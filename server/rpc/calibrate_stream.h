#pragma once

#include <memory>
#include <optional>
#include <string>

#include "calibration/calibrator.h"
#include "ripplekv/v1/calibration.pb.h"
#include "server/rpc/calibration_service.h"
#include "server/rpc/stream_reactor.h"

namespace ripplekv {

// One CalibrateModel call. Where the client reads slowly it gets only the newest progress.
class CalibrateStream final : public StreamReactor<v1::CalibrateModelResponse>,
                              public CalibrationListener {
 public:
  CalibrateStream(grpc::CallbackServerContext* context, const Observers& observers);

  // Starts or joins the measurement, or ends the call with what is wrong.
  static void Start(const std::shared_ptr<CalibrateStream>& stream,
                    const Slot<CalibrationBackend>& slot, const v1::CalibrateModelRequest& request);

  void OnStarted(const CalibrationStarted& started) override;
  void OnProgress(const CalibrationProgress& progress) override;
  void OnDone(const absl::StatusOr<CalibrationResult>& result) override;

  // The client left, or its deadline passed.
  void OnCancel() override;

 private:
  using StreamReactor::OnDone;  // gRPC's, of no arguments

  absl::Status Begin(const std::shared_ptr<CalibrateStream>& self,
                     const Slot<CalibrationBackend>& slot,
                     const v1::CalibrateModelRequest& request);
  // Has the calibrator forget this caller. Call without mutex_ held.
  void Leave(const std::string& job_id);
  bool TakeNext(v1::CalibrateModelResponse* message) override;
  void Opening(bool message) override { record_.SendRequestId(message); }
  void Ended(const grpc::Status& status) override;

  CallRecord record_;
  const Observers observers_;
  std::shared_ptr<const CalibrationBackend> backend_;
  // Guarded by mutex_.
  std::string job_id_;
  bool cancelled_ = false;
  // What waits to be sent, in this order.
  std::optional<v1::CalibrationStarted> started_;
  std::optional<v1::CalibrationProgress> progress_;
  std::optional<v1::CalibrationComplete> complete_;
};

}  // namespace ripplekv
