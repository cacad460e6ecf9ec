#pragma once

#include <google/protobuf/descriptor.h>
#include <grpcpp/server_context.h>

#include <chrono>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "server/observe/log.h"
#include "server/observe/metrics.h"
#include "server/rpc/access.h"
#include "server/rpc/call.h"
#include "server/rpc/status.h"

namespace ripplekv {

// What services report to, and who says whose a call is; all outlive every call.
struct Observers {
  Log* log = nullptr;
  Metrics* metrics = nullptr;
  const Access* access = nullptr;
};

// Has the metrics show the methods of a service from the start.
void DeclareMethods(const google::protobuf::ServiceDescriptor& service, Metrics* metrics);

// One call from its arrival to its end: its request id, which the caller gets in metadata, the
// trace it belongs to, its line in the log (the access log: one "call" a call) and its place in the
// metrics.
class CallRecord {
 public:
  // `method` without package, e.g. "Generate"; a string literal. `field`: the message's own
  // request_id or empty.
  CallRecord(grpc::CallbackServerContext* context, const Observers& observers, const char* method,
             absl::string_view field = {});

  // UNAUTHENTICATED where the caller may not call, INVALID_ARGUMENT where the request id given is
  // not one. A call goes on only where this is OK.
  const absl::Status& status() const { return status_; }
  const std::string& request_id() const { return request_id_; }
  // Access::CallerOf; "unauthenticated" where that is nobody.
  const std::string& caller() const { return caller_; }
  double SecondsSinceArrival() const;
  // What every line of the log about this call starts with, `more` after it: request_id, trace_id,
  // caller.
  Log::Fields Fields(Log::Fields more = {}) const;

  // Once, before a stream's first message or the status of a call without any: adds the request id
  // to the initial metadata where the call is `answered`, else to the trailing. A refusal is then
  // all trailers, which is what lets gRPC's clients and proxies try the call again.
  void SendRequestId(bool answered);

  // Once, at the end. `more` is added to the line.
  void End(grpc::StatusCode code, const std::string& message, Log::Fields more = {});

 private:
  grpc::CallbackServerContext* const context_;  // of use until the call's status is sent
  const Observers observers_;
  const char* const method_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::string request_id_;
  const std::string trace_id_;
  std::string caller_;
  absl::Status status_;
};

// Answers a unary call with what `run`, or run(caller), returns.
template <typename Run>
grpc::ServerUnaryReactor* AnswerUnary(grpc::CallbackServerContext* context,
                                      const Observers& observers, const char* method, Run&& run) {
  CallRecord record(context, observers, method);
  absl::Status status = record.status();
  if (status.ok()) {
    if constexpr (std::is_invocable_v<Run&, const std::string&>) {
      status = run(record.caller());
    } else {
      status = run();
    }
  }
  const grpc::Status wire = ToGrpcStatus(status);
  record.SendRequestId(wire.ok());
  record.End(wire.error_code(), wire.error_message());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(wire);
  return reactor;
}

}  // namespace ripplekv
