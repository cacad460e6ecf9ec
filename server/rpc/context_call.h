#pragma once

#include <memory>

#include "ripplekv/v1/decode.pb.h"
#include "server/engine/request.h"
#include "server/rpc/engine_call.h"

namespace ripplekv {

// One CreateContext call.
class ContextCall final : public EngineCall, public ContextSink {
 public:
  // `response` is gRPC's, until the call is done.
  ContextCall(grpc::CallbackServerContext* context, const Observers& observers,
              const v1::CreateContextRequest& request, v1::CreateContextResponse* response);

  // Hands the request to the engine, or ends the call with what is wrong.
  static void Start(const std::shared_ptr<ContextCall>& call, const Slot<DecodeBackend>& slot,
                    const v1::CreateContextRequest& request);

  void OnComplete(ContextInfo context) override;
  void OnError(absl::Status status) override { End(status); }

 private:
  grpc::CallbackServerContext* const context_;
  v1::CreateContextResponse* const response_;
};

}  // namespace ripplekv
