#include "server/rpc/generate_convert.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/rpc/kv_convert.h"
#include "server/rpc/limits.h"
#include "server/rpc/prompt_convert.h"
#include "server/rpc/status.h"
#include "server/rpc/usage_convert.h"

namespace ripplekv {
namespace {

// The repeated fields are counted before they are copied.
absl::Status CheckCount(absl::string_view field, int count, int most) {
  if (count <= most) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("has ", count, " entries: must be at most ", most));
}

v1::FinishReason ReasonToProto(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEndOfText:
      return v1::FINISH_REASON_END_OF_TEXT;
    case FinishReason::kStopTokenId:
      return v1::FINISH_REASON_STOP_TOKEN;
    case FinishReason::kStopString:
      return v1::FINISH_REASON_STOP_STRING;
    case FinishReason::kMaxTokens:
      return v1::FINISH_REASON_MAX_TOKENS;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

}  // namespace

absl::StatusOr<GenerateRequest> RequestFromProto(const v1::GenerateRequest& proto,
                                                 const ModelInfo& model,
                                                 const PlanDefaults& defaults,
                                                 const ContextOrigin* context,
                                                 int32_t max_prompt_tokens) {
  GenerateRequest request;
  const v1::SamplingParams& sampling = proto.sampling();
  const v1::StoppingParams& stopping = proto.stopping();
  for (const absl::Status& status :
       {CheckCount("sampling.logit_bias", static_cast<int>(sampling.logit_bias().size()),
                   kMaxLogitBias),
        CheckCount("stopping.stop_strings", stopping.stop_strings_size(), kMaxStopStrings),
        CheckCount("stopping.stop_token_ids", stopping.stop_token_ids_size(), kMaxStopTokenIds)}) {
    if (!status.ok()) return status;
  }
  SamplingParams& s = request.sampling;
  if (sampling.has_temperature()) s.temperature = sampling.temperature();
  if (sampling.has_top_k()) s.top_k = sampling.top_k();
  if (sampling.has_top_p()) s.top_p = sampling.top_p();
  if (sampling.has_min_p()) s.min_p = sampling.min_p();
  if (sampling.has_repetition_penalty()) s.repetition_penalty = sampling.repetition_penalty();
  if (sampling.has_presence_penalty()) s.presence_penalty = sampling.presence_penalty();
  if (sampling.has_frequency_penalty()) s.frequency_penalty = sampling.frequency_penalty();
  if (sampling.has_seed()) s.seed = sampling.seed();
  s.logit_bias.assign(sampling.logit_bias().begin(), sampling.logit_bias().end());

  StoppingParams& t = request.stopping;
  if (stopping.has_max_tokens()) t.max_tokens = stopping.max_tokens();
  if (stopping.has_min_tokens()) t.min_tokens = stopping.min_tokens();
  t.stop_strings.assign(stopping.stop_strings().begin(), stopping.stop_strings().end());
  t.stop_token_ids.assign(stopping.stop_token_ids().begin(), stopping.stop_token_ids().end());
  t.ignore_eos = stopping.ignore_eos();

  absl::StatusOr<KvParams> kv = KvParamsFromProto(
      proto.kv(), defaults, context == nullptr ? KvUse::kGenerate : KvUse::kGenerateOverContext);
  if (!kv.ok()) return kv.status();
  request.kv = *std::move(kv);

  if (proto.output().has_logprobs()) {
    const int n = proto.output().logprobs();
    if (n < 0 || n > kMaxLogprobs) {
      return InvalidField("output.logprobs",
                          absl::StrCat("is ", n, ": must be 0 to ", kMaxLogprobs));
    }
    request.logprobs = n;
  }
  request.next_token_kl = proto.output().next_token_kl();
  if (request.next_token_kl && context != nullptr) {
    return InvalidField("output.next_token_kl",
                        "is not defined over a context: must be absent, since no exact prefill of "
                        "context and prompt is there to compare with");
  }

  // Last: it is the expensive part.
  if (proto.prompt_case() == v1::GenerateRequest::PROMPT_NOT_SET) {
    return InvalidField("prompt", "is absent: must be text, chat or token_ids");
  }
  absl::StatusOr<std::vector<int32_t>> prompt =
      PromptFromProto(proto, model, context, max_prompt_tokens);
  if (!prompt.ok()) return prompt.status();
  request.prompt = *std::move(prompt);
  return request;
}

void ChunkToProto(TokenChunk chunk, const Tokenizer& tokenizer, v1::GenerateChunk* proto) {
  proto->set_text(std::move(chunk.text));
  proto->mutable_token_ids()->Add(chunk.token_ids.begin(), chunk.token_ids.end());
  for (const TokenLogprob& logprob : chunk.logprobs) {
    v1::TokenLogprob* out = proto->add_logprobs();
    out->set_token_id(logprob.token);
    out->set_token(std::string(tokenizer.TokenBytes(logprob.token)));
    out->set_logprob(logprob.logprob);
    for (const auto& [id, value] : logprob.top) {
      v1::TopLogprob* top = out->add_top();
      top->set_token_id(id);
      top->set_token(std::string(tokenizer.TokenBytes(id)));
      top->set_logprob(value);
    }
  }
}

void CompletionToProto(const Completion& completion, v1::GenerateComplete* proto) {
  proto->set_finish_reason(ReasonToProto(completion.finish_reason));
  if (completion.finish_reason == FinishReason::kStopString) {
    proto->set_stop_string(completion.matched_stop_string);
  } else if (completion.matched_stop_token >= 0) {
    proto->set_stop_token_id(completion.matched_stop_token);
  }
  UsageToProto(completion.usage, proto->mutable_usage());
  CacheToProto(completion.cache, proto->mutable_cache());
  TimingsToProto(completion.timings, proto->mutable_timings());
  proto->set_compactions(completion.compactions);
  if (completion.next_token_kl.has_value()) proto->set_next_token_kl(*completion.next_token_kl);
  if (completion.next_token_kl_floor.has_value()) {
    proto->set_next_token_kl_floor(*completion.next_token_kl_floor);
  }
  proto->set_seed(completion.seed);
}

}  // namespace ripplekv
