#include "server/rpc/decode_service.h"

#include "absl/strings/str_cat.h"
#include "server/rpc/call.h"
#include "server/rpc/context_call.h"
#include "server/rpc/context_queries.h"
#include "server/rpc/generate_stream.h"
#include "server/rpc/limits.h"
#include "server/rpc/model_convert.h"
#include "server/rpc/prompt_convert.h"
#include "server/rpc/score_call.h"
#include "server/rpc/status.h"

namespace ripplekv {
namespace {

absl::Status CheckTokenizeBytes(absl::string_view field, size_t bytes) {
  if (bytes <= kMaxTokenizeBytes) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("is ", bytes, " bytes: must be at most ",
                                          kMaxTokenizeBytes, "; send longer text in parts"));
}

absl::Status TokenizePrompt(const ModelInfo& model, const v1::TokenizeRequest& request,
                            v1::TokenizeResponse* response) {
  absl::StatusOr<std::vector<int32_t>> ids;
  size_t bytes = request.text().size();
  for (const v1::ChatMessage& one : request.chat().messages()) bytes += one.content().size();
  const absl::Status wrong =
      CheckTokenizeBytes(request.has_chat() ? "chat.messages" : "text", bytes);
  if (!wrong.ok()) return wrong;
  switch (request.prompt_case()) {
    case v1::TokenizeRequest::kText:
      ids = TextToIds(model, "text", request.text(), TextStart::kSequence, /*max_tokens=*/0);
      break;
    case v1::TokenizeRequest::kChat:
      ids = ChatToIds(model, request.chat(), /*max_tokens=*/0);
      break;
    case v1::TokenizeRequest::PROMPT_NOT_SET:
      return InvalidField("prompt", "is absent: must be text or chat");
  }
  if (!ids.ok()) return ids.status();
  response->mutable_token_ids()->Add(ids->begin(), ids->end());
  for (const int32_t id : *ids) response->add_tokens(std::string(model.tokenizer->TokenBytes(id)));
  return absl::OkStatus();
}

absl::Status DetokenizeIds(const Tokenizer& tokenizer, const v1::DetokenizeRequest& request,
                           v1::DetokenizeResponse* response) {
  if (request.token_ids_size() > kMaxDetokenizeIds) {
    return InvalidField("token_ids", absl::StrCat("has ", request.token_ids_size(),
                                                  " entries: must be at most ", kMaxDetokenizeIds));
  }
  for (int i = 0; i < request.token_ids_size(); ++i) {
    const int32_t id = request.token_ids(i);
    if (!tokenizer.Contains(id)) {
      return InvalidField(
          absl::StrCat("token_ids[", i, "]"),
          absl::StrCat("is ", id, ": must be a token id in [0, ", tokenizer.vocab_size() - 1, "]"));
    }
    if (!request.skip_special_tokens() || !tokenizer.IsSpecial(id)) {
      response->mutable_raw()->append(tokenizer.TokenBytes(id));
    }
  }
  absl::StatusOr<std::string> text =
      tokenizer.Decode(absl::MakeConstSpan(request.token_ids().data(),
                                           static_cast<size_t>(request.token_ids_size())),
                       request.skip_special_tokens());
  if (!text.ok()) return text.status();
  response->set_text(*std::move(text));
  return absl::OkStatus();
}

}  // namespace

DecodeService::DecodeService(const Slot<DecodeBackend>* backend, const Observers& observers,
                             std::chrono::milliseconds slow_reader_timeout)
    : backend_(backend), observers_(observers), watch_(slow_reader_timeout) {
  DeclareMethods(*v1::GenerateRequest::descriptor()->file()->FindServiceByName("DecodeService"),
                 observers.metrics);
}

grpc::ServerWriteReactor<v1::GenerateResponse>* DecodeService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  auto stream = std::make_shared<GenerateStream>(context, observers_, request->request_id());
  stream->KeepUntilDone(stream);
  GenerateStream::Start(stream, *backend_, *request, watch_);
  return stream.get();
}

grpc::ServerUnaryReactor* DecodeService::Score(grpc::CallbackServerContext* context,
                                               const v1::ScoreRequest* request,
                                               v1::ScoreResponse* response) {
  const auto call = std::make_shared<ScoreCall>(context, observers_, *request, response);
  ScoreCall::Start(call, *backend_, *request);
  return call.get();
}

grpc::ServerUnaryReactor* DecodeService::CreateContext(grpc::CallbackServerContext* context,
                                                       const v1::CreateContextRequest* request,
                                                       v1::CreateContextResponse* response) {
  const auto call = std::make_shared<ContextCall>(context, observers_, *request, response);
  ContextCall::Start(call, *backend_, *request);
  return call.get();
}

grpc::ServerUnaryReactor* DecodeService::GetContext(grpc::CallbackServerContext* context,
                                                    const v1::GetContextRequest* request,
                                                    v1::GetContextResponse* response) {
  return AnswerUnary(context, observers_, "GetContext",
                     [&](const std::string& caller) -> absl::Status {
                       const auto backend = backend_->Get();
                       if (!backend.ok()) return backend.status();
                       return ripplekv::GetContext((*backend)->engine->contexts(),
                                                   (*backend)->engine_options.context_idle, caller,
                                                   *request, response);
                     });
}

grpc::ServerUnaryReactor* DecodeService::ListContexts(grpc::CallbackServerContext* context,
                                                      const v1::ListContextsRequest* request,
                                                      v1::ListContextsResponse* response) {
  return AnswerUnary(context, observers_, "ListContexts",
                     [&](const std::string& caller) -> absl::Status {
                       const auto backend = backend_->Get();
                       if (!backend.ok()) return backend.status();
                       return ripplekv::ListContexts((*backend)->engine->contexts(),
                                                     (*backend)->engine_options.context_idle,
                                                     caller, *request, response);
                     });
}

grpc::ServerUnaryReactor* DecodeService::DeleteContext(grpc::CallbackServerContext* context,
                                                       const v1::DeleteContextRequest* request,
                                                       v1::DeleteContextResponse*) {
  return AnswerUnary(
      context, observers_, "DeleteContext", [&](const std::string& caller) -> absl::Status {
        const auto backend = backend_->Get();
        if (!backend.ok()) return backend.status();
        return ripplekv::DeleteContext((*backend)->engine->contexts(), caller, *request);
      });
}

grpc::ServerUnaryReactor* DecodeService::GetModel(grpc::CallbackServerContext* context,
                                                  const v1::GetModelRequest*,
                                                  v1::GetModelResponse* response) {
  return AnswerUnary(context, observers_, "GetModel", [&]() -> absl::Status {
    const auto backend = backend_->Get();
    if (!backend.ok()) return backend.status();
    ModelToProto(**backend, response);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* DecodeService::Tokenize(grpc::CallbackServerContext* context,
                                                  const v1::TokenizeRequest* request,
                                                  v1::TokenizeResponse* response) {
  return AnswerUnary(context, observers_, "Tokenize", [&]() -> absl::Status {
    const auto backend = backend_->Get();
    if (!backend.ok()) return backend.status();
    return TokenizePrompt(*(*backend)->model, *request, response);
  });
}

grpc::ServerUnaryReactor* DecodeService::Detokenize(grpc::CallbackServerContext* context,
                                                    const v1::DetokenizeRequest* request,
                                                    v1::DetokenizeResponse* response) {
  return AnswerUnary(context, observers_, "Detokenize", [&]() -> absl::Status {
    const auto backend = backend_->Get();
    if (!backend.ok()) return backend.status();
    return DetokenizeIds(*(*backend)->model->tokenizer, *request, response);
  });
}

}  // namespace ripplekv
