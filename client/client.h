#pragma once

#include <grpcpp/channel.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/canceller.h"
#include "client/credentials.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "ripplekv/v1/calibration.grpc.pb.h"
#include "ripplekv/v1/decode.grpc.pb.h"

namespace ripplekv {

// What holds for one call.
struct CallOptions {
  std::optional<double> timeout_seconds = std::nullopt;  // above 0; unset: as long as it takes
  // Sent as metadata x-request-id: printable ASCII. Empty: the server makes one.
  std::string request_id = {};
  Canceller* canceller = nullptr;  // may cancel the call from another thread
  bool wait_for_ready = false;     // until the server can be reached, rather than failing at once
};

// INVALID_ARGUMENT unless `address` is HOST:PORT (an IPv6 host in brackets), unix:PATH or a gRPC
// target with a scheme such as dns:///HOST:PORT or ipv4:ADDRESS:PORT,ADDRESS:PORT.
absl::Status CheckServerAddress(const std::string& address);

// Calls of both services at one address, blocking, thin over the stubs. Connects on the first call,
// without HTTP proxies, and connects again after the connection was lost. Safe for concurrent
// calls.
//
// Where the target has several addresses calls take turns at those that can be reached. Contexts
// are on one server: a call about one has the header x-ripplekv-context, by which a proxy finds it.
//
// Errors carry the server's code, message and details (client/rpc_error.h). UNAVAILABLE for a
// server that cannot be reached, or not so (plain text, TLS, certificates), names the address. A
// callback sees every message of a stream in order, the last included.
class Client {
 public:
  // `address` passed CheckServerAddress, both CheckTokenIsSafe.
  explicit Client(std::string address, const Credentials& credentials = {});

  const std::string& address() const { return address_; }

  absl::StatusOr<v1::GenerateComplete> Generate(
      const v1::GenerateRequest& request, const CallOptions& options,
      const std::function<void(const v1::GenerateResponse&)>& on_event) const;
  absl::StatusOr<v1::ScoreResponse> Score(const v1::ScoreRequest& request,
                                          const CallOptions& options) const;
  absl::StatusOr<v1::CreateContextResponse> CreateContext(const v1::CreateContextRequest& request,
                                                          const CallOptions& options) const;
  absl::StatusOr<v1::GetContextResponse> GetContext(const v1::GetContextRequest& request,
                                                    const CallOptions& options) const;
  absl::StatusOr<v1::ListContextsResponse> ListContexts(const v1::ListContextsRequest& request,
                                                        const CallOptions& options) const;
  absl::StatusOr<v1::DeleteContextResponse> DeleteContext(const v1::DeleteContextRequest& request,
                                                          const CallOptions& options) const;
  absl::StatusOr<v1::GetModelResponse> GetModel(const CallOptions& options) const;
  absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request,
                                                const CallOptions& options) const;
  absl::StatusOr<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest& request,
                                                    const CallOptions& options) const;

  absl::StatusOr<v1::CalibrationComplete> CalibrateModel(
      const v1::CalibrateModelRequest& request, const CallOptions& options,
      const std::function<void(const v1::CalibrateModelResponse&)>& on_event) const;
  absl::StatusOr<v1::ListCalibrationsResponse> ListCalibrations(
      const v1::ListCalibrationsRequest& request, const CallOptions& options) const;
  absl::StatusOr<v1::CancelCalibrationResponse> CancelCalibration(
      const v1::CancelCalibrationRequest& request, const CallOptions& options) const;
  absl::StatusOr<v1::GetProfileResponse> GetProfile(const v1::GetProfileRequest& request,
                                                    const CallOptions& options) const;
  absl::StatusOr<v1::ListProfilesResponse> ListProfiles(const v1::ListProfilesRequest& request,
                                                        const CallOptions& options) const;
  absl::StatusOr<v1::DeleteProfileResponse> DeleteProfile(const v1::DeleteProfileRequest& request,
                                                          const CallOptions& options) const;
  absl::StatusOr<v1::PlanBudgetsResponse> PlanBudgets(const v1::PlanBudgetsRequest& request,
                                                      const CallOptions& options) const;

  // The state of one service by its full name; empty: the server as a whole.
  absl::StatusOr<grpc::health::v1::HealthCheckResponse> CheckHealth(
      const std::string& service, const CallOptions& options) const;

 private:
  absl::Status Finish(const grpc::Status& status, const grpc::ClientContext& context) const;
  template <typename Response, typename Method, typename Request>
  absl::StatusOr<Response> Call(Method method, const Request& request,
                                const CallOptions& options) const;
  template <typename Complete, typename Response, typename Start, typename Request>
  absl::StatusOr<Complete> Stream(Start start, const Request& request, const CallOptions& options,
                                  const std::function<void(const Response&)>& on_event) const;

  std::string address_;
  bool tls_;
  std::string token_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::DecodeService::Stub> decode_;
  std::unique_ptr<v1::CalibrationService::Stub> calibration_;
  std::unique_ptr<grpc::health::v1::Health::Stub> health_;
};

}  // namespace ripplekv
