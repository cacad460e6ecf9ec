#pragma once

#include <grpcpp/client_context.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "calibration/profile_store.h"
#include "calibration/settings.h"
#include "client/credential_files.h"
#include "ripplekv/v1/calibration.grpc.pb.h"
#include "server/observe/metrics.h"
#include "server/plan_keeper.h"
#include "server/rpc/call_record.h"
#include "server/rpc/profile_convert.h"

namespace ripplekv {

// Gets the profile of the configured settings from a ripplekv-calibration-server: asks for a stored
// one, else has it measured; checks it, keeps it in this server's own store and makes it the plan.
// Tries until it has it, on a thread of its own, ever less often while the other server cannot be
// reached, refuses or measures something else.
class RemoteCalibration {
 public:
  struct Options {
    std::string address;
    CalibrationSettings settings;
    std::string corpus;
    CredentialFiles credentials = {};  // read again for every attempt: they may be replaced
  };
  // plans->key() says which profile is wanted. All pointers outlive this object.
  RemoteCalibration(Options options, PlanKeeper* plans, ProfileStore* store,
                    const Observers& observers);
  // Stops trying, cancels a call under way.
  ~RemoteCalibration();
  RemoteCalibration(const RemoteCalibration&) = delete;
  RemoteCalibration& operator=(const RemoteCalibration&) = delete;

  CalibrationState state() const { return {running_.load(), fraction_.load()}; }

 private:
  void Run();
  absl::Status FetchOnce();
  absl::Status Connect();
  absl::StatusOr<v1::Profile> AskForStored();
  absl::StatusOr<v1::Profile> AskForMeasurement();
  absl::Status Keep(const v1::Profile& proto);
  // Makes the context of the next call cancellable by the destructor; false once that runs.
  bool Enter(grpc::ClientContext* context);
  void Leave();
  bool Pause(std::chrono::milliseconds time);  // false when stopping

  const Options options_;
  PlanKeeper* const plans_;
  ProfileStore* const store_;
  const Observers observers_;
  const std::string wanted_id_;
  // Of thread_, as Connect made them.
  std::string token_;
  std::unique_ptr<v1::CalibrationService::Stub> stub_;
  absl::Status cancelled_;  // thread_'s own: OK until a caller of CancelCalibration ended it there
  std::atomic<bool> running_{false};
  std::atomic<double> fraction_{0};

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  grpc::ClientContext* context_ = nullptr;  // of the call under way
  std::thread thread_;
};

}  // namespace ripplekv
