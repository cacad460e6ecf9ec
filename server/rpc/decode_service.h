#pragma once

#include <chrono>

#include "ripplekv/v1/decode.grpc.pb.h"
#include "server/rpc/call_record.h"
#include "server/rpc/decode_backend.h"
#include "server/rpc/slot.h"
#include "server/rpc/slow_reader_watch.h"

namespace ripplekv {

// ripplekv.v1.DecodeService. Handlers run on gRPC's threads: they parse, validate and enqueue.
class DecodeService final : public v1::DecodeService::CallbackService {
 public:
  // Backend and observers outlive the service. A client that takes none of its messages for
  // `slow_reader_timeout` is dropped.
  DecodeService(const Slot<DecodeBackend>* backend, const Observers& observers,
                std::chrono::milliseconds slow_reader_timeout);

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* Score(grpc::CallbackServerContext* context,
                                  const v1::ScoreRequest* request,
                                  v1::ScoreResponse* response) override;
  grpc::ServerUnaryReactor* CreateContext(grpc::CallbackServerContext* context,
                                          const v1::CreateContextRequest* request,
                                          v1::CreateContextResponse* response) override;
  grpc::ServerUnaryReactor* GetContext(grpc::CallbackServerContext* context,
                                       const v1::GetContextRequest* request,
                                       v1::GetContextResponse* response) override;
  grpc::ServerUnaryReactor* ListContexts(grpc::CallbackServerContext* context,
                                         const v1::ListContextsRequest* request,
                                         v1::ListContextsResponse* response) override;
  grpc::ServerUnaryReactor* DeleteContext(grpc::CallbackServerContext* context,
                                          const v1::DeleteContextRequest* request,
                                          v1::DeleteContextResponse* response) override;
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
  SlowReaderWatch watch_;
};

}  // namespace ripplekv
