#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "server/engine/request_handle.h"
#include "server/rpc/call_record.h"
#include "server/rpc/decode_backend.h"
#include "server/rpc/slot.h"

namespace ripplekv {

// A unary call that the engine works for: Score, CreateContext. The work is cancelled where the
// caller leaves or its deadline passes.
//
// gRPC needs the object until OnDone, the engine perhaps longer: so it is shared, and holds itself
// until OnDone.
class EngineCall : public grpc::ServerUnaryReactor {
 public:
  EngineCall(grpc::CallbackServerContext* context, const Observers& observers, const char* method,
             const std::string& request_id);

  using Submit =
      std::function<absl::StatusOr<std::shared_ptr<RequestHandle>>(const DecodeBackend& backend)>;
  // Keeps the call until it is done and hands its request to the engine by `submit`, or ends it
  // with what is wrong.
  void Start(std::shared_ptr<EngineCall> self, const Slot<DecodeBackend>& slot,
             const Submit& submit);

  void OnCancel() final;
  void OnDone() final;

 protected:
  // Ends the call. With an OK status `answer` first fills the response, unless the caller has left.
  void End(const absl::Status& status, const std::function<void()>& answer = nullptr,
           Log::Fields summary = {});

  const CallRecord& record() const { return record_; }
  const DecodeBackend& backend() const { return *backend_; }  // once submitted

 private:
  absl::Status Begin(const Slot<DecodeBackend>& slot, const Submit& submit);
  void FinishWith(grpc::Status status);

  std::shared_ptr<EngineCall> self_;
  CallRecord record_;
  std::shared_ptr<const DecodeBackend> backend_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::shared_ptr<RequestHandle> handle_;
  std::optional<grpc::Status> final_;  // set once: the call is finished
  bool cancelled_ = false;
  Log::Fields summary_;
};

}  // namespace ripplekv
