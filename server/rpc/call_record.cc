#include "server/rpc/call_record.h"

namespace ripplekv {
namespace {

constexpr char kRequestIdKey[] = "x-request-id";

}  // namespace

CallRecord::CallRecord(grpc::CallbackServerContext* context, const Observers& observers,
                       const char* method, absl::string_view field)
    : context_(context),
      observers_(observers),
      method_(method),
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

void CallRecord::End(grpc::StatusCode code, const std::string& message, bool notable,
                     Log::Fields more) {
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const std::string name = absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
  observers_.metrics->OnCall(method_, name, seconds);
  Log::Fields fields = {{"method", method_},
                        {"request_id", request_id_},
                        {"caller", caller_},
                        {"code", name},
                        {"seconds", seconds}};
  if (code != grpc::StatusCode::OK) fields.emplace_back("error", message);
  fields.insert(fields.end(), more.begin(), more.end());
  if (code == grpc::StatusCode::OK && !notable) {
    observers_.log->Debug("call", std::move(fields));
  } else {
    observers_.log->Info("call", std::move(fields));
  }
}

}  // namespace ripplekv
