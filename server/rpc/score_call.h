#pragma once

#include <memory>

#include "ripplekv/v1/decode.pb.h"
#include "server/engine/request.h"
#include "server/rpc/engine_call.h"

namespace ripplekv {

// One Score call.
class ScoreCall final : public EngineCall, public ScoreSink {
 public:
  // `response` is gRPC's, until the call is done.
  ScoreCall(grpc::CallbackServerContext* context, const Observers& observers,
            const v1::ScoreRequest& request, v1::ScoreResponse* response);

  // Hands the request to the engine, or ends the call with what is wrong.
  static void Start(const std::shared_ptr<ScoreCall>& call, const Slot<DecodeBackend>& slot,
                    const v1::ScoreRequest& request);

  void OnComplete(ScoreResult result) override;
  void OnError(absl::Status status) override { End(status); }

 private:
  grpc::CallbackServerContext* const context_;
  v1::ScoreResponse* const response_;
};

}  // namespace ripplekv
