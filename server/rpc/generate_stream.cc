#include "server/rpc/generate_stream.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/rpc/generate_convert.h"
#include "server/rpc/limits.h"
#include "server/rpc/status.h"

namespace ripplekv {
namespace {

template <typename T>
void Append(std::vector<T>& to, std::vector<T>& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

}  // namespace

GenerateStream::GenerateStream(grpc::CallbackServerContext* context, const Observers& observers,
                               const std::string& request_id)
    : record_(context, observers, "Generate", request_id) {}

void GenerateStream::Start(const std::shared_ptr<GenerateStream>& stream,
                           const grpc::CallbackServerContext& context,
                           const Slot<DecodeBackend>& slot, const v1::GenerateRequest& request) {
  const absl::Status status = stream->Submit(stream, context, slot, request);
  if (status.ok()) return;
  const std::lock_guard lock(stream->mutex_);
  stream->End(ToGrpcStatus(status));
}

absl::Status GenerateStream::Submit(const std::shared_ptr<GenerateStream>& self,
                                    const grpc::CallbackServerContext& context,
                                    const Slot<DecodeBackend>& slot,
                                    const v1::GenerateRequest& request) {
  if (!record_.status().ok()) return record_.status();
  auto backend = slot.Get();
  if (!backend.ok()) return backend.status();
  backend_ = *std::move(backend);
  if (backend_->wait_for_profile && !backend_->plans->has_profile()) {
    return absl::UnavailableError(absl::StrCat(
        "waiting for a sensitivity profile (--wait-for-profile): ", backend_->plans->status()));
  }
  absl::StatusOr<GenerateRequest> converted = RequestFromProto(
      request, *backend_->model, backend_->defaults, backend_->engine->max_prompt_tokens());
  if (!converted.ok()) return converted.status();
  converted->id = record_.request_id();
  converted->deadline = DeadlineOf(context);
  absl::StatusOr<std::shared_ptr<RequestHandle>> handle =
      backend_->engine->Submit(*std::move(converted), self);
  if (!handle.ok()) {
    return handle.status().GetPayload(kRetryLater).has_value()
               ? WithRetryDelay(handle.status(), kRetryDelay)
               : handle.status();
  }
  const std::lock_guard lock(mutex_);
  handle_ = *std::move(handle);
  if (cancelled_) handle_->Cancel();
  return absl::OkStatus();
}

void GenerateStream::OnTokens(TokenChunk chunk) {
  const std::lock_guard lock(mutex_);
  if (!waiting_.has_value()) {
    waiting_ = std::move(chunk);
  } else {
    waiting_->text += chunk.text;
    Append(waiting_->token_ids, chunk.token_ids);
    Append(waiting_->logprobs, chunk.logprobs);
  }
  Advance();
}

void GenerateStream::OnComplete(Completion completion) {
  const std::lock_guard lock(mutex_);
  CompletionToProto(completion, &complete_.emplace());
  summary_ = {{"prompt_tokens", completion.usage.prompt_tokens},
              {"output_tokens", completion.usage.completion_tokens},
              {"kv_bytes", completion.cache.kept_bytes},
              {"full_kv_bytes", completion.cache.full_bytes},
              {"queue_seconds", completion.timings.queue_seconds},
              {"prefill_seconds", completion.timings.prefill_seconds},
              {"decode_seconds", completion.timings.decode_seconds}};
  End(grpc::Status::OK);
}

void GenerateStream::OnError(absl::Status status) {
  const std::lock_guard lock(mutex_);
  End(ToGrpcStatus(status));
}

void GenerateStream::OnCancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  if (handle_ != nullptr) handle_->Cancel();
  // The engine will not be waited for: this call is over.
  End(grpc::Status(grpc::StatusCode::CANCELLED, "the caller left or its deadline passed"));
}

bool GenerateStream::TakeNext(v1::GenerateResponse* message) {
  if (waiting_.has_value()) {
    message->Clear();
    message->set_request_id(record_.request_id());
    ChunkToProto(*std::move(waiting_), *backend_->model->tokenizer, message->mutable_chunk());
    waiting_.reset();
    return true;
  }
  if (complete_.has_value()) {
    message->Clear();
    message->set_request_id(record_.request_id());
    *message->mutable_complete() = *std::move(complete_);
    complete_.reset();
    return true;
  }
  return false;
}

void GenerateStream::Ended(const grpc::Status& status) {
  Log::Fields summary;
  {
    const std::lock_guard lock(mutex_);
    handle_.reset();
    summary = std::move(summary_);
  }
  record_.End(status.error_code(), status.error_message(), /*notable=*/true, std::move(summary));
}

}  // namespace ripplekv
