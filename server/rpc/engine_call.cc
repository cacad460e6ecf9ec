#include "server/rpc/engine_call.h"

#include "server/rpc/status.h"

namespace ripplekv {

EngineCall::EngineCall(grpc::CallbackServerContext* context, const Observers& observers,
                       const char* method, const std::string& request_id)
    : record_(context, observers, method, request_id) {}

void EngineCall::Start(std::shared_ptr<EngineCall> self, const Slot<DecodeBackend>& slot,
                       const Submit& submit) {
  self_ = std::move(self);
  if (absl::Status status = Begin(slot, submit); !status.ok()) End(status);
}

absl::Status EngineCall::Begin(const Slot<DecodeBackend>& slot, const Submit& submit) {
  if (!record_.status().ok()) return record_.status();
  auto backend = ServingBackend(slot);
  if (!backend.ok()) return backend.status();
  backend_ = *std::move(backend);
  absl::StatusOr<std::shared_ptr<RequestHandle>> handle = submit(*backend_);
  if (!handle.ok()) return handle.status();
  const std::lock_guard lock(mutex_);
  handle_ = *std::move(handle);
  if (cancelled_) handle_->Cancel();
  return absl::OkStatus();
}

void EngineCall::End(const absl::Status& status, const std::function<void()>& answer,
                     Log::Fields summary) {
  const std::lock_guard lock(mutex_);
  if (final_.has_value()) return;
  if (status.ok()) answer();
  summary_ = std::move(summary);
  FinishWith(ToGrpcStatus(status));
}

void EngineCall::OnCancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  if (handle_ != nullptr) handle_->Cancel();
  // The engine will not be waited for: this call is over.
  if (!final_.has_value()) {
    FinishWith(grpc::Status(grpc::StatusCode::CANCELLED, "the caller left or its deadline passed"));
  }
}

void EngineCall::FinishWith(grpc::Status status) {
  final_ = std::move(status);
  record_.SendRequestId(final_->ok());
  Finish(*final_);
}

void EngineCall::OnDone() {
  Log::Fields summary;
  grpc::Status status;
  {
    const std::lock_guard lock(mutex_);
    handle_.reset();
    summary = std::move(summary_);
    status = *final_;  // set before Finish
  }
  record_.End(status.error_code(), status.error_message(), std::move(summary));
  const std::shared_ptr<EngineCall> last = std::move(self_);
}

}  // namespace ripplekv
