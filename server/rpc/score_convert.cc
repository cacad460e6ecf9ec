#include "server/rpc/score_convert.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/rpc/kv_convert.h"
#include "server/rpc/prompt_convert.h"
#include "server/rpc/status.h"
#include "server/rpc/usage_convert.h"

namespace ripplekv {
namespace {

absl::StatusOr<std::vector<int32_t>> ContinuationFromProto(const v1::Continuation& proto,
                                                           const std::string& field,
                                                           const ModelInfo& model) {
  absl::StatusOr<std::vector<int32_t>> ids;
  switch (proto.continuation_case()) {
    case v1::Continuation::kText:
      ids = TextToIds(model, absl::StrCat(field, ".text"), proto.text(), TextStart::kGoesOn,
                      model.config.context_length);
      break;
    case v1::Continuation::kTokenIds:
      ids = IdsFromProto(absl::StrCat(field, ".token_ids"), proto.token_ids(), *model.tokenizer);
      break;
    case v1::Continuation::CONTINUATION_NOT_SET:
      return InvalidField(field, "is empty: must be text or token_ids");
  }
  if (!ids.ok()) return ids;
  if (ids->empty()) return InvalidField(field, "has no token: must have at least 1");
  if (ids->size() > static_cast<size_t>(model.config.context_length)) {
    return InvalidField(field, absl::StrCat("has ", ids->size(), " tokens: must be 1 to ",
                                            model.config.context_length, " (the context length)"));
  }
  return ids;
}

bool PromptIsEmpty(const v1::ScoreRequest& proto) {
  switch (proto.prompt_case()) {
    case v1::ScoreRequest::kText:
      return proto.text().empty();
    case v1::ScoreRequest::kTokenIds:
      return proto.token_ids().ids().empty();
    case v1::ScoreRequest::kChat:
      return false;
    case v1::ScoreRequest::PROMPT_NOT_SET:
      return true;
  }
  return true;
}

absl::StatusOr<std::vector<int32_t>> ScorePrompt(const v1::ScoreRequest& proto,
                                                 const ModelInfo& model,
                                                 const ContextOrigin* context,
                                                 int32_t max_prompt_tokens) {
  if (!PromptIsEmpty(proto)) return PromptFromProto(proto, model, context, max_prompt_tokens);
  if (context != nullptr) return std::vector<int32_t>();
  if (model.tokenizer->bos().has_value()) return std::vector<int32_t>{*model.tokenizer->bos()};
  return absl::FailedPreconditionError(
      "prompt: is empty, and the model has no BOS token to begin with; give at least 1 token");
}

}  // namespace

absl::StatusOr<ScoreRequest> ScoreRequestFromProto(const v1::ScoreRequest& proto,
                                                   const ModelInfo& model,
                                                   const PlanDefaults& defaults,
                                                   const ContextOrigin* context,
                                                   int32_t max_prompt_tokens) {
  ScoreRequest request;
  const int count = proto.continuations_size();
  if (count < 1 || count > ScoreRequest::kMaxContinuations) {
    return InvalidField("continuations", absl::StrCat("has ", count, " entries: must have 1 to ",
                                                      ScoreRequest::kMaxContinuations));
  }
  absl::StatusOr<KvParams> kv = KvParamsFromProto(
      proto.kv(), defaults, context == nullptr ? KvUse::kPrefill : KvUse::kPrefillOverContext);
  if (!kv.ok()) return kv.status();
  request.kv = *std::move(kv);
  request.reference = proto.reference();
  if (request.reference && context != nullptr) {
    return InvalidField("reference",
                        "is true over a context: must be false, the context's full cache is gone");
  }
  absl::StatusOr<std::vector<int32_t>> prompt =
      ScorePrompt(proto, model, context, max_prompt_tokens);
  if (!prompt.ok()) return prompt.status();
  request.prompt = *std::move(prompt);
  for (int i = 0; i < count; ++i) {
    absl::StatusOr<std::vector<int32_t>> ids = ContinuationFromProto(
        proto.continuations(i), absl::StrCat("continuations[", i, "]"), model);
    if (!ids.ok()) return ids.status();
    request.continuations.push_back(*std::move(ids));
  }
  return request;
}

void ScoreToProto(const ScoreResult& result, const Tokenizer& tokenizer, v1::ScoreResponse* proto) {
  for (const ContinuationScore& score : result.continuations) {
    v1::ContinuationScore* out = proto->add_continuations();
    out->set_logprob(score.logprob);
    out->set_greedy(score.greedy);
    for (const TokenScore& token : score.tokens) {
      v1::TokenScore* one = out->add_tokens();
      one->set_token_id(token.token);
      one->set_token(std::string(tokenizer.TokenBytes(token.token)));
      one->set_logprob(token.logprob);
      one->set_greedy(token.greedy);
      if (!token.reference.has_value()) continue;
      one->set_kl(token.reference->kl);
      one->set_top1_agrees(token.reference->top1_agrees);
      one->set_reference_logprob(token.reference->logprob);
    }
    if (score.mean_kl.has_value()) out->set_mean_kl(*score.mean_kl);
  }
  UsageToProto(result.usage, proto->mutable_usage());
  CacheToProto(result.cache, proto->mutable_cache());
  TimingsToProto(result.timings, proto->mutable_timings());
}

}  // namespace ripplekv
