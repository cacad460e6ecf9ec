#pragma once

#include <memory>
#include <string>

#include "ripplekv/v1/decode.grpc.pb.h"
#include "server/engine/engine.h"
#include "server/loaded_model.h"
#include "server/plan_keeper.h"
#include "server/rpc/call_record.h"
#include "server/rpc/plan_convert.h"
#include "server/rpc/slot.h"

namespace ripplekv {

// What DecodeService works with once the model is loaded. Engine and plans outlive every call.
struct DecodeBackend {
  std::shared_ptr<const ModelInfo> model;
  Engine* engine = nullptr;
  PlanKeeper* plans = nullptr;
  PlanDefaults defaults;
  bool wait_for_profile = false;  // refuse to generate until the plan has a profile
  int64_t kv_memory_bytes = 0;
  int max_queue = 0;
  int64_t max_message_bytes = 0;
};

// ripplekv.v1.DecodeService. Handlers run on gRPC's threads: they parse, validate and enqueue.
class DecodeService final : public v1::DecodeService::CallbackService {
 public:
  // Both outlive the service.
  DecodeService(const Slot<DecodeBackend>* backend, const Observers& observers)
      : backend_(backend), observers_(observers) {}

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const v1::GetModelRequest* request,
                                     v1::GetModelResponse* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;

 private:
  const Slot<DecodeBackend>* const backend_;
  const Observers observers_;
};

}  // namespace ripplekv
