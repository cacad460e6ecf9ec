#include "server/rpc/call_record.h"

#include "server/rpc/trace_context.h"

namespace ripplekv {
namespace {

constexpr char kRequestIdKey[] = "x-request-id";

}  // namespace

void DeclareMethods(const google::protobuf::ServiceDescriptor& service, Metrics* metrics) {
  for (int i = 0; i < service.method_count(); ++i)
    metrics->DeclareMethod(service.method(i)->name());
}

CallRecord::CallRecord(grpc::CallbackServerContext* context, const Observers& observers,
                       const char* method, absl::string_view field)
    : context_(context),
      observers_(observers),
      method_(method),
      trace_id_(TraceIdOf(*context)),
      caller_("unauthenticated") {
  absl::StatusOr<std::string> id = RequestIdOf(*context, field);
  if (id.ok()) {
    request_id_ = *std::move(id);
  } else {
    status_ = id.status();
  }
  absl::StatusOr<std::string> caller = observers.access->CallerOf(*context);
  if (caller.ok()) {
    caller_ = *std::move(caller);
  } else {
    status_ = caller.status();
  }
}

void CallRecord::SendRequestId(bool answered) {
  if (request_id_.empty()) return;
  if (answered) {
    context_->AddInitialMetadata(kRequestIdKey, request_id_);
  } else {
    context_->AddTrailingMetadata(kRequestIdKey, request_id_);
  }
}

double CallRecord::SecondsSinceArrival() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

Log::Fields CallRecord::Fields(Log::Fields more) const {
  Log::Fields fields = {{"request_id", request_id_}, {"trace_id", trace_id_}, {"caller", caller_}};
  fields.insert(fields.end(), more.begin(), more.end());
  return fields;
}

void CallRecord::End(grpc::StatusCode code, const std::string& message, Log::Fields more) {
  const double seconds = SecondsSinceArrival();
  const std::string name = absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
  observers_.metrics->OnCall(method_, name, seconds);
  Log::Fields fields = Fields({{"method", method_}, {"code", name}, {"seconds", seconds}});
  if (code != grpc::StatusCode::OK) fields.emplace_back("error", message);
  fields.insert(fields.end(), more.begin(), more.end());
  observers_.log->Info("call", std::move(fields));
}

}  // namespace ripplekv
