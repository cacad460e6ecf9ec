#include "client/client.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <type_traits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/handshake.h"
#include "client/rpc_error.h"

namespace ripplekv {
namespace {

// Beyond this a deadline is no deadline; it keeps the clock's arithmetic in range.
constexpr double kMaxTimeoutSeconds = 1e9;

// What a proxy chooses the replica of a context by: the part of the context's id that its maker
// chose, or the whole of another id. Empty: the call is about no context.
template <typename Request>
std::string ContextKeyOf(const Request& request) {
  if constexpr (std::is_same_v<Request, v1::CreateContextRequest>) {
    std::random_device random;
    return absl::StrFormat("%08x%08x", random(), random());
  } else if constexpr (requires { request.context_id(); }) {
    const std::string& id = request.context_id();
    const auto fits = [](unsigned char c) { return c > ' ' && c < 0x7f; };
    // What cannot stand in a header is no context's id: the server says so.
    if (!std::all_of(id.begin(), id.end(), fits)) return "";
    return id.substr(0, id.rfind('.'));
  } else {
    return "";
  }
}

template <typename Request>
void Prepare(const CallOptions& options, const std::string& token, const Request& request,
             grpc::ClientContext& context) {
  if (options.timeout_seconds && *options.timeout_seconds < kMaxTimeoutSeconds) {
    context.set_deadline(
        std::chrono::system_clock::now() +
        std::chrono::microseconds(static_cast<int64_t>(*options.timeout_seconds * 1e6)));
  }
  context.set_wait_for_ready(options.wait_for_ready);
  if (!token.empty()) context.AddMetadata("authorization", absl::StrCat("Bearer ", token));
  if (!options.request_id.empty()) context.AddMetadata("x-request-id", options.request_id);
  const std::string key = ContextKeyOf(request);
  if (!key.empty()) context.AddMetadata("x-ripplekv-context", key);
}

// Of an ended call: from the trailers where it failed before its first message.
std::string RequestIdOf(const grpc::ClientContext& context) {
  for (const auto* metadata :
       {&context.GetServerInitialMetadata(), &context.GetServerTrailingMetadata()}) {
    const auto id = metadata->find("x-request-id");
    if (id != metadata->end()) return std::string(id->second.data(), id->second.size());
  }
  return "";
}

grpc::ChannelArguments ChannelOptions() {
  grpc::ChannelArguments arguments;
  // A prompt's tokens or a list of profiles may be long, and the user chose the server.
  arguments.SetMaxReceiveMessageSize(-1);
  // Calls take turns at the addresses that a name has; of one address this is gRPC's default.
  arguments.SetLoadBalancingPolicyName("round_robin");
  // An http_proxy in the environment is meant for the web, not for a server named by address.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // A server that is just starting is found soon after it listens. (Not the minimum: it is also how
  // long a busy server may take to answer a connection.)
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  return arguments;
}

}  // namespace

absl::Status CheckServerAddress(const std::string& address) {
  for (const char* scheme : {"unix:", "dns:", "ipv4:", "ipv6:"}) {
    if (absl::StartsWith(address, scheme)) return absl::OkStatus();
  }
  if (absl::StrContains(address, "://")) return absl::OkStatus();
  const size_t colon = address.rfind(':');
  const std::string host = colon == std::string::npos ? "" : address.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  int port = 0;
  if (host.empty() || (!bracketed && host.find_first_of(":[]") != std::string::npos) ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 1 || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat(
        "server is '", address,
        "': must be HOST:PORT, e.g. 127.0.0.1:50051 or [::1]:50051, with a port of 1 to 65535"));
  }
  return absl::OkStatus();
}

Client::Client(std::string address, const Credentials& credentials)
    : address_(std::move(address)),
      tls_(credentials.tls),
      token_(credentials.token),
      channel_(grpc::CreateCustomChannel(address_, credentials.channel(), ChannelOptions())),
      decode_(v1::DecodeService::NewStub(channel_)),
      calibration_(v1::CalibrationService::NewStub(channel_)),
      health_(grpc::health::v1::Health::NewStub(channel_)) {}

absl::Status Client::Finish(const grpc::Status& status, const grpc::ClientContext& context) const {
  if (status.ok()) return absl::OkStatus();
  const std::string request_id = RequestIdOf(context);
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    switch (channel_->GetState(false)) {
      case GRPC_CHANNEL_READY:
        break;  // the server itself said so
      case GRPC_CHANNEL_IDLE:
        return FromRpc(grpc::Status(status.error_code(),
                                    absl::StrCat("the connection to ", address_, " was lost (",
                                                 status.error_message(), ")")),
                       request_id);
      default: {
        const std::string why = ExplainHandshake(tls_, status.error_message());
        if (!why.empty()) {
          return FromRpc(grpc::Status(status.error_code(),
                                      absl::StrCat("no connection to the server at ", address_,
                                                   ": ", why, " (", status.error_message(), ")")),
                         request_id);
        }
        return FromRpc(
            grpc::Status(status.error_code(), absl::StrCat("no server can be reached at ", address_,
                                                           " (", status.error_message(), ")")),
            request_id);
      }
    }
  }
  return FromRpc(status, request_id);
}

template <typename Response, typename Method, typename Request>
absl::StatusOr<Response> Client::Call(Method method, const Request& request,
                                      const CallOptions& options) const {
  grpc::ClientContext context;
  Prepare(options, token_, request, context);
  RunningCall running(options.canceller, &context);
  Response response;
  const grpc::Status status = method(&context, request, &response);
  if (absl::Status failed = Finish(status, context); !failed.ok()) return failed;
  return response;
}

template <typename Complete, typename Response, typename Start, typename Request>
absl::StatusOr<Complete> Client::Stream(
    Start start, const Request& request, const CallOptions& options,
    const std::function<void(const Response&)>& on_event) const {
  grpc::ClientContext context;
  Prepare(options, token_, request, context);
  RunningCall running(options.canceller, &context);
  auto reader = start(&context, request);
  Response response;
  std::optional<Complete> complete;
  while (reader->Read(&response)) {
    on_event(response);
    if (response.has_complete()) complete = std::move(*response.mutable_complete());
  }
  if (absl::Status failed = Finish(reader->Finish(), context); !failed.ok()) return failed;
  if (!complete) {
    return absl::InternalError(
        absl::StrCat("the server at ", address_, " ended its stream without 'complete'"));
  }
  return *std::move(complete);
}

absl::StatusOr<v1::GenerateComplete> Client::Generate(
    const v1::GenerateRequest& request, const CallOptions& options,
    const std::function<void(const v1::GenerateResponse&)>& on_event) const {
  return Stream<v1::GenerateComplete, v1::GenerateResponse>(
      [&](auto&&... arguments) { return decode_->Generate(arguments...); }, request, options,
      on_event);
}

absl::StatusOr<v1::CalibrationComplete> Client::CalibrateModel(
    const v1::CalibrateModelRequest& request, const CallOptions& options,
    const std::function<void(const v1::CalibrateModelResponse&)>& on_event) const {
  return Stream<v1::CalibrationComplete, v1::CalibrateModelResponse>(
      [&](auto&&... arguments) { return calibration_->CalibrateModel(arguments...); }, request,
      options, on_event);
}

absl::StatusOr<v1::GetModelResponse> Client::GetModel(const CallOptions& options) const {
  return Call<v1::GetModelResponse>(
      [&](auto&&... arguments) { return decode_->GetModel(arguments...); }, v1::GetModelRequest(),
      options);
}

absl::StatusOr<v1::ScoreResponse> Client::Score(const v1::ScoreRequest& request,
                                                const CallOptions& options) const {
  return Call<v1::ScoreResponse>([&](auto&&... arguments) { return decode_->Score(arguments...); },
                                 request, options);
}

absl::StatusOr<v1::CreateContextResponse> Client::CreateContext(
    const v1::CreateContextRequest& request, const CallOptions& options) const {
  return Call<v1::CreateContextResponse>(
      [&](auto&&... arguments) { return decode_->CreateContext(arguments...); }, request, options);
}

absl::StatusOr<v1::GetContextResponse> Client::GetContext(const v1::GetContextRequest& request,
                                                          const CallOptions& options) const {
  return Call<v1::GetContextResponse>(
      [&](auto&&... arguments) { return decode_->GetContext(arguments...); }, request, options);
}

absl::StatusOr<v1::ListContextsResponse> Client::ListContexts(
    const v1::ListContextsRequest& request, const CallOptions& options) const {
  return Call<v1::ListContextsResponse>(
      [&](auto&&... arguments) { return decode_->ListContexts(arguments...); }, request, options);
}

absl::StatusOr<v1::DeleteContextResponse> Client::DeleteContext(
    const v1::DeleteContextRequest& request, const CallOptions& options) const {
  return Call<v1::DeleteContextResponse>(
      [&](auto&&... arguments) { return decode_->DeleteContext(arguments...); }, request, options);
}

absl::StatusOr<v1::TokenizeResponse> Client::Tokenize(const v1::TokenizeRequest& request,
                                                      const CallOptions& options) const {
  return Call<v1::TokenizeResponse>(
      [&](auto&&... arguments) { return decode_->Tokenize(arguments...); }, request, options);
}

absl::StatusOr<v1::DetokenizeResponse> Client::Detokenize(const v1::DetokenizeRequest& request,
                                                          const CallOptions& options) const {
  return Call<v1::DetokenizeResponse>(
      [&](auto&&... arguments) { return decode_->Detokenize(arguments...); }, request, options);
}

absl::StatusOr<v1::ListCalibrationsResponse> Client::ListCalibrations(
    const v1::ListCalibrationsRequest& request, const CallOptions& options) const {
  return Call<v1::ListCalibrationsResponse>(
      [&](auto&&... arguments) { return calibration_->ListCalibrations(arguments...); }, request,
      options);
}

absl::StatusOr<v1::CancelCalibrationResponse> Client::CancelCalibration(
    const v1::CancelCalibrationRequest& request, const CallOptions& options) const {
  return Call<v1::CancelCalibrationResponse>(
      [&](auto&&... arguments) { return calibration_->CancelCalibration(arguments...); }, request,
      options);
}

absl::StatusOr<v1::GetProfileResponse> Client::GetProfile(const v1::GetProfileRequest& request,
                                                          const CallOptions& options) const {
  return Call<v1::GetProfileResponse>(
      [&](auto&&... arguments) { return calibration_->GetProfile(arguments...); }, request,
      options);
}

absl::StatusOr<v1::ListProfilesResponse> Client::ListProfiles(
    const v1::ListProfilesRequest& request, const CallOptions& options) const {
  return Call<v1::ListProfilesResponse>(
      [&](auto&&... arguments) { return calibration_->ListProfiles(arguments...); }, request,
      options);
}

absl::StatusOr<v1::DeleteProfileResponse> Client::DeleteProfile(
    const v1::DeleteProfileRequest& request, const CallOptions& options) const {
  return Call<v1::DeleteProfileResponse>(
      [&](auto&&... arguments) { return calibration_->DeleteProfile(arguments...); }, request,
      options);
}

absl::StatusOr<v1::PlanBudgetsResponse> Client::PlanBudgets(const v1::PlanBudgetsRequest& request,
                                                            const CallOptions& options) const {
  return Call<v1::PlanBudgetsResponse>(
      [&](auto&&... arguments) { return calibration_->PlanBudgets(arguments...); }, request,
      options);
}

absl::StatusOr<grpc::health::v1::HealthCheckResponse> Client::CheckHealth(
    const std::string& service, const CallOptions& options) const {
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  return Call<grpc::health::v1::HealthCheckResponse>(
      [&](auto&&... arguments) { return health_->Check(arguments...); }, request, options);
}

}  // namespace ripplekv
