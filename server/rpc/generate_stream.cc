#include "server/rpc/generate_stream.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/rpc/call.h"
#include "server/rpc/context_queries.h"
#include "server/rpc/generate_convert.h"
#include "server/rpc/limits.h"
#include "server/rpc/status.h"
#include "server/rpc/usage_convert.h"

namespace ripplekv {
namespace {

template <typename T>
void Append(std::vector<T>& to, std::vector<T>& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

}  // namespace

GenerateStream::GenerateStream(grpc::CallbackServerContext* context, const Observers& observers,
                               const std::string& request_id)
    : context_(context),
      observers_(observers),
      record_(context, observers, "Generate", request_id) {}

void GenerateStream::Start(const std::shared_ptr<GenerateStream>& stream,
                           const Slot<DecodeBackend>& slot, const v1::GenerateRequest& request,
                           SlowReaderWatch& watch) {
  watch.Add(stream);
  const absl::Status status = stream->Submit(stream, slot, request);
  if (status.ok()) return;
  const std::lock_guard lock(stream->mutex_);
  stream->End(ToGrpcStatus(status));
}

absl::Status GenerateStream::Submit(const std::shared_ptr<GenerateStream>& self,
                                    const Slot<DecodeBackend>& slot,
                                    const v1::GenerateRequest& request) {
  if (!record_.status().ok()) return record_.status();
  auto backend = ServingBackend(slot);
  if (!backend.ok()) return backend.status();
  backend_ = *std::move(backend);
  auto context = UseContext(backend_->engine->contexts(), record_.caller(), request.context_id());
  if (!context.ok()) return context.status();
  absl::StatusOr<GenerateRequest> converted =
      RequestFromProto(request, *backend_->model, backend_->defaults, OriginOf(context->get()),
                       backend_->engine->max_prompt_tokens());
  if (!converted.ok()) return converted.status();
  converted->id = record_.request_id();
  converted->context = *std::move(context);
  converted->deadline = DeadlineOf(*context_);
  absl::StatusOr<std::shared_ptr<RequestHandle>> handle =
      backend_->engine->Submit(*std::move(converted), self);
  if (!handle.ok()) return handle.status();
  const std::lock_guard lock(mutex_);
  handle_ = *std::move(handle);
  if (cancelled_) handle_->Cancel();
  return absl::OkStatus();
}

void GenerateStream::OnTokens(TokenChunk chunk) {
  const auto now = std::chrono::steady_clock::now();
  const std::lock_guard lock(mutex_);
  if (last_token_.has_value()) longest_gap_ = std::max(longest_gap_, now - *last_token_);
  last_token_ = now;
  if (output_tokens_ == 0) first_token_seconds_ = record_.SecondsSinceArrival();
  output_tokens_ += static_cast<int64_t>(chunk.token_ids.size());
  if (waiting_.empty() ||
      waiting_.back().token_ids.size() + chunk.token_ids.size() > kMaxChunkTokens) {
    waiting_.push_back(std::move(chunk));
  } else {
    TokenChunk& last = waiting_.back();
    last.text += chunk.text;
    Append(last.token_ids, chunk.token_ids);
    Append(last.logprobs, chunk.logprobs);
  }
  Advance();
}

void GenerateStream::OnComplete(Completion completion) {
  const std::lock_guard lock(mutex_);
  CompletionToProto(completion, &complete_.emplace());
  summary_ = {{"prompt_tokens", completion.usage.prompt_tokens},
              {"output_tokens", completion.usage.completion_tokens},
              {"context_tokens", completion.usage.context_tokens},
              {"kept_positions", KeptPositions(completion.cache.layers)},
              {"kv_bytes", completion.cache.kept_bytes},
              {"full_kv_bytes", completion.cache.full_bytes},
              {"queue_seconds", completion.timings.queue_seconds},
              {"first_token_seconds", first_token_seconds_},
              {"prefill_seconds", completion.timings.prefill_seconds},
              {"decode_seconds", completion.timings.decode_seconds},
              {"stall_seconds", std::chrono::duration<double>(longest_gap_).count()}};
  if (completion.usage.completion_tokens > 1) {
    observers_.metrics->OnStall(std::chrono::duration<double>(longest_gap_).count());
  }
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

void GenerateStream::DropIfStuck(std::chrono::steady_clock::time_point oldest) {
  std::unique_lock lock(mutex_);
  if (!Stuck(oldest)) return;
  cancelled_ = true;
  if (handle_ != nullptr) handle_->Cancel();
  observers_.metrics->OnSlowReaderDropped();
  observers_.log->Warning("slow_reader_dropped", record_.Fields());
  Drop(grpc::Status(grpc::StatusCode::CANCELLED,
                    "the client took none of its messages for --slow-reader-timeout"),
       context_, lock);
}

bool GenerateStream::TakeNext(v1::GenerateResponse* message) {
  if (!waiting_.empty()) {
    message->Clear();
    message->set_request_id(record_.request_id());
    ChunkToProto(std::move(waiting_.front()), *backend_->model->tokenizer,
                 message->mutable_chunk());
    waiting_.pop_front();
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
    if (summary.empty() && output_tokens_ > 0) {  // it began, and did not complete
      summary = {{"output_tokens", output_tokens_}, {"first_token_seconds", first_token_seconds_}};
    }
  }
  record_.End(status.error_code(), status.error_message(), std::move(summary));
}

}  // namespace ripplekv
