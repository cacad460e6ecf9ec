#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "ripplekv/v1/decode.pb.h"
#include "server/engine/request.h"
#include "server/rpc/call_record.h"
#include "server/rpc/decode_backend.h"
#include "server/rpc/slow_reader_watch.h"
#include "server/rpc/stream_reactor.h"

namespace ripplekv {

// One Generate call: what the engine produces on its side, what the client takes on the other.
// Where the client reads slowly, pieces of output are merged into longer chunks, which wait;
// max_tokens bounds them; where it takes nothing for too long, the call is dropped.
class GenerateStream final : public StreamReactor<v1::GenerateResponse>,
                             public GenerationSink,
                             public WatchedStream {
 public:
  GenerateStream(grpc::CallbackServerContext* context, const Observers& observers,
                 const std::string& request_id);

  // Hands the request to the engine, or ends the call with what is wrong. `watch` looks after it
  // from then on.
  static void Start(const std::shared_ptr<GenerateStream>& stream, const Slot<DecodeBackend>& slot,
                    const v1::GenerateRequest& request, SlowReaderWatch& watch);

  void OnTokens(TokenChunk chunk) override;
  void OnComplete(Completion completion) override;
  void OnError(absl::Status status) override;

  // The client left, or its deadline passed.
  void OnCancel() override;

  void DropIfStuck(std::chrono::steady_clock::time_point oldest) override;

 private:
  absl::Status Submit(const std::shared_ptr<GenerateStream>& self, const Slot<DecodeBackend>& slot,
                      const v1::GenerateRequest& request);
  bool TakeNext(v1::GenerateResponse* message) override;
  void Opening(bool message) override { record_.SendRequestId(message); }
  void Ended(const grpc::Status& status) override;

  grpc::CallbackServerContext* const context_;
  const Observers observers_;
  CallRecord record_;
  std::shared_ptr<const DecodeBackend> backend_;
  // Guarded by mutex_.
  std::shared_ptr<RequestHandle> handle_;
  std::deque<TokenChunk> waiting_;  // each of at most kMaxChunkTokens, but for one that came longer
  std::optional<v1::GenerateComplete> complete_;  // after waiting_
  bool cancelled_ = false;
  // Of the stall: the longest wait of one token for the next.
  std::optional<std::chrono::steady_clock::time_point> last_token_;
  std::chrono::steady_clock::duration longest_gap_{0};
  int64_t output_tokens_ = 0;       // so far
  double first_token_seconds_ = 0;  // from the call's arrival, where there is one
  Log::Fields summary_;             // of a completed request, for the log
};

}  // namespace ripplekv
