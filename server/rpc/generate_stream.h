#pragma once

#include <memory>
#include <optional>
#include <string>

#include "ripplekv/v1/decode.pb.h"
#include "server/engine/request.h"
#include "server/rpc/decode_service.h"
#include "server/rpc/stream_reactor.h"

namespace ripplekv {

// One Generate call: what the engine produces on its side, what the client takes on the other.
// Where the client reads slowly, pieces of output are merged into one waiting chunk, which
// max_tokens bounds.
class GenerateStream final : public StreamReactor<v1::GenerateResponse>, public GenerationSink {
 public:
  GenerateStream(grpc::CallbackServerContext* context, const Observers& observers,
                 const std::string& request_id);

  // Hands the request to the engine, or ends the call with what is wrong.
  static void Start(const std::shared_ptr<GenerateStream>& stream,
                    const grpc::CallbackServerContext& context, const Slot<DecodeBackend>& slot,
                    const v1::GenerateRequest& request);

  void OnTokens(TokenChunk chunk) override;
  void OnComplete(Completion completion) override;
  void OnError(absl::Status status) override;

  // The client left, or its deadline passed.
  void OnCancel() override;

 private:
  absl::Status Submit(const std::shared_ptr<GenerateStream>& self,
                      const grpc::CallbackServerContext& context, const Slot<DecodeBackend>& slot,
                      const v1::GenerateRequest& request);
  bool TakeNext(v1::GenerateResponse* message) override;
  void Ended(const grpc::Status& status) override;

  CallRecord record_;
  std::shared_ptr<const DecodeBackend> backend_;
  // Guarded by mutex_.
  std::shared_ptr<RequestHandle> handle_;
  std::optional<TokenChunk> waiting_;
  std::optional<v1::GenerateComplete> complete_;  // after waiting_
  bool cancelled_ = false;
  Log::Fields summary_;  // of a completed request, for the log
};

}  // namespace ripplekv
