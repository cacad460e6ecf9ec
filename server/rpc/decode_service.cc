#include "server/rpc/decode_service.h"

#include "absl/strings/str_cat.h"
#include "server/rpc/generate_stream.h"
#include "server/rpc/limits.h"
#include "server/rpc/model_convert.h"
#include "server/rpc/prompt_convert.h"
#include "server/rpc/status.h"

namespace ripplekv {
namespace {

absl::Status TokenizePrompt(const ModelInfo& model, const v1::TokenizeRequest& request,
                            v1::TokenizeResponse* response) {
  absl::StatusOr<std::vector<int32_t>> ids;
  switch (request.prompt_case()) {
    case v1::TokenizeRequest::kText:
      ids = TextToIds(model, request.text(), /*max_tokens=*/0);
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

grpc::ServerWriteReactor<v1::GenerateResponse>* DecodeService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  auto stream = std::make_shared<GenerateStream>(context, observers_, request->request_id());
  stream->KeepUntilDone(stream);
  GenerateStream::Start(stream, *context, *backend_, *request);
  return stream.get();
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
