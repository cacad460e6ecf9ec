#include "server/engine/request_validation.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "model/unicode.h"
#include "server/engine/context_registry.h"

namespace ripplekv {
namespace {

template <typename T>
absl::Status OutOfRange(const std::string& field, T value, const std::string& range) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ": must be ", range));
}

absl::Status CheckToken(const std::string& field, size_t index, int32_t id, int32_t vocab) {
  if (id >= 0 && id < vocab) return absl::OkStatus();
  return OutOfRange(absl::StrCat(field, "[", index, "]"), id,
                    absl::StrCat("a token id in [0, ", vocab - 1, "]"));
}

// NaN is in no range.
bool Within(double x, double low, double high) { return x >= low && x <= high; }

absl::Status ValidateSampling(const SamplingParams& s, int32_t vocab) {
  if (!Within(s.temperature, 0, 100))
    return OutOfRange("sampling.temperature", s.temperature, "in [0, 100]");
  if (s.top_k < 0 || s.top_k > vocab) {
    return OutOfRange("sampling.top_k", s.top_k, absl::StrCat("in [0, ", vocab, "] (0: off)"));
  }
  if (!(s.top_p > 0 && s.top_p <= 1)) return OutOfRange("sampling.top_p", s.top_p, "in (0, 1]");
  if (!Within(s.min_p, 0, 1)) return OutOfRange("sampling.min_p", s.min_p, "in [0, 1]");
  // The API's numbers are floats: their 0.01 is a little below the double's.
  if (!Within(s.repetition_penalty, 0.01f, 10)) {
    return OutOfRange("sampling.repetition_penalty", s.repetition_penalty, "in [0.01, 10]");
  }
  if (!Within(s.presence_penalty, -10, 10)) {
    return OutOfRange("sampling.presence_penalty", s.presence_penalty, "in [-10, 10]");
  }
  if (!Within(s.frequency_penalty, -10, 10)) {
    return OutOfRange("sampling.frequency_penalty", s.frequency_penalty, "in [-10, 10]");
  }
  if (s.logit_bias.size() > 1024)
    return OutOfRange("sampling.logit_bias", s.logit_bias.size(), "at most 1024 entries");
  absl::flat_hash_set<int32_t> ids;
  for (size_t i = 0; i < s.logit_bias.size(); ++i) {
    const auto& [id, bias] = s.logit_bias[i];
    if (absl::Status status = CheckToken("sampling.logit_bias", i, id, vocab); !status.ok())
      return status;
    if (!Within(bias, -100, 100))
      return OutOfRange(absl::StrCat("sampling.logit_bias of token ", id), bias, "in [-100, 100]");
    if (!ids.insert(id).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("sampling.logit_bias names token ", id, " twice"));
    }
  }
  return absl::OkStatus();
}

// What the model's context leaves for the output.
int32_t Left(const GenerateRequest& request, const RequestLimits& limits) {
  return limits.context_length - ContextTokens(request.context) -
         static_cast<int32_t>(request.prompt.size());
}

absl::Status ValidateStopping(const GenerateRequest& request, const RequestLimits& limits) {
  const StoppingParams& s = request.stopping;
  const int32_t left = Left(request, limits);
  if (s.max_tokens.has_value() && (*s.max_tokens < 1 || *s.max_tokens > left)) {
    return OutOfRange("stopping.max_tokens", *s.max_tokens,
                      absl::StrCat("in [1, ", left, "]: the context of ", limits.context_length,
                                   " tokens less the prompt's ", limits.context_length - left));
  }
  const int32_t max_tokens = EffectiveMaxTokens(request, limits);
  if (s.min_tokens < 0 || s.min_tokens > max_tokens) {
    return OutOfRange("stopping.min_tokens", s.min_tokens,
                      absl::StrCat("in [0, ", max_tokens, "] (max_tokens)"));
  }
  if (s.stop_strings.size() > 16)
    return OutOfRange("stopping.stop_strings", s.stop_strings.size(), "at most 16 strings");
  for (size_t i = 0; i < s.stop_strings.size(); ++i) {
    const std::string field = absl::StrCat("stopping.stop_strings[", i, "]");
    if (s.stop_strings[i].empty() || s.stop_strings[i].size() > 256)
      return OutOfRange(field, s.stop_strings[i].size(), "1 to 256 bytes long");
    if (FindInvalidUtf8(s.stop_strings[i]) != std::string_view::npos) {
      return absl::InvalidArgumentError(absl::StrCat(field, " is not valid UTF-8"));
    }
  }
  if (s.stop_token_ids.size() > 256) {
    return OutOfRange("stopping.stop_token_ids", s.stop_token_ids.size(), "at most 256 ids");
  }
  for (size_t i = 0; i < s.stop_token_ids.size(); ++i) {
    if (absl::Status status =
            CheckToken("stopping.stop_token_ids", i, s.stop_token_ids[i], limits.vocab_size);
        !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace

namespace {

absl::Status ValidateTokens(const std::string& field, const std::vector<int32_t>& ids,
                            const RequestLimits& limits) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (absl::Status status = CheckToken(field, i, ids[i], limits.vocab_size); !status.ok())
      return status;
  }
  return absl::OkStatus();
}

absl::Status ValidatePrompt(const std::vector<int32_t>& prompt, int32_t context_tokens,
                            bool may_be_empty, const RequestLimits& limits) {
  const int32_t most = limits.max_prompt_tokens - context_tokens;
  const std::string range = absl::StrCat(
      "must be ", may_be_empty ? 0 : 1, " to ", most, " tokens (",
      context_tokens > 0 ? absl::StrCat(context_tokens, " of a context before it, ") : "",
      "context length ", limits.context_length, ")");
  if (prompt.empty() && !may_be_empty) {
    return absl::InvalidArgumentError(absl::StrCat("prompt is empty: ", range));
  }
  if (static_cast<int64_t>(prompt.size()) > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("prompt is ", prompt.size(), " tokens: ", range));
  }
  return ValidateTokens("prompt", prompt, limits);
}

absl::Status ValidateKv(const KvParams& kv, bool over_context, bool decodes) {
  if (over_context && (kv.size.has_value() || kv.allocator.has_value() || kv.selector.has_value() ||
                       kv.key_type.has_value() || kv.value_type.has_value())) {
    return absl::InvalidArgumentError(
        "kv is given with context_id: size, allocator, selector, key_type and value_type are those "
        "that the context was created with; leave them out");
  }
  if (kv.size.has_value()) {
    if (absl::Status status = ValidateSize(*kv.size); !status.ok()) return status;
  }
  if (kv.allocator.has_value()) {
    if (absl::Status status = ValidateAllocator(*kv.allocator); !status.ok()) return status;
  }
  if (kv.selector.has_value()) {
    if (absl::Status status = ValidateSelector(*kv.selector); !status.ok()) return status;
  }
  if (!kv.growth_cap.has_value()) return absl::OkStatus();
  if (!decodes) {
    return absl::InvalidArgumentError(absl::StrCat("kv.growth_cap is ", *kv.growth_cap,
                                                   ": must be absent where nothing is generated"));
  }
  if (*kv.growth_cap != 0 &&
      (*kv.growth_cap < KvParams::kMinGrowthCap || *kv.growth_cap > KvParams::kMaxGrowthCap)) {
    return OutOfRange("kv.growth_cap", *kv.growth_cap,
                      absl::StrCat("0 (unbounded) or in [", KvParams::kMinGrowthCap, ", ",
                                   KvParams::kMaxGrowthCap, "]"));
  }
  return absl::OkStatus();
}

}  // namespace

int32_t ContextTokens(const std::shared_ptr<const ContextLease>& context) {
  return context == nullptr ? 0 : static_cast<int32_t>(context->info().tokens);
}

absl::Status ValidateRequest(const GenerateRequest& request, const RequestLimits& limits) {
  if (absl::Status status = ValidatePrompt(request.prompt, ContextTokens(request.context),
                                           /*may_be_empty=*/false, limits);
      !status.ok()) {
    return status;
  }
  if (absl::Status status = ValidateKv(request.kv, request.context != nullptr, /*decodes=*/true);
      !status.ok()) {
    return status;
  }
  if (request.next_token_kl && request.context != nullptr) {
    return absl::InvalidArgumentError(
        "output.next_token_kl is true: it is not defined over a context, whose exact cache is "
        "gone");
  }
  if (absl::Status status = ValidateSampling(request.sampling, limits.vocab_size); !status.ok())
    return status;
  if (absl::Status status = ValidateStopping(request, limits); !status.ok()) return status;
  if (request.logprobs.has_value() && (*request.logprobs < 0 || *request.logprobs > 20)) {
    return OutOfRange("output.logprobs", *request.logprobs, "in [0, 20]");
  }
  return absl::OkStatus();
}

absl::Status ValidateRequest(const ScoreRequest& request, const RequestLimits& limits) {
  const int32_t context_tokens = ContextTokens(request.context);
  if (absl::Status status =
          ValidatePrompt(request.prompt, context_tokens, request.context != nullptr, limits);
      !status.ok()) {
    return status;
  }
  if (absl::Status status = ValidateKv(request.kv, request.context != nullptr, /*decodes=*/false);
      !status.ok()) {
    return status;
  }
  if (request.reference && request.context != nullptr) {
    return absl::InvalidArgumentError(
        "reference is true: it is not defined over a context, whose full cache is gone");
  }
  if (request.continuations.empty() ||
      request.continuations.size() > static_cast<size_t>(ScoreRequest::kMaxContinuations)) {
    return OutOfRange("continuations", request.continuations.size(),
                      absl::StrCat("1 to ", ScoreRequest::kMaxContinuations, " of them"));
  }
  // The last token of a continuation is not pushed through the model.
  const int32_t longest = std::min(limits.context_length, limits.max_prompt_tokens + 1);
  const size_t left = static_cast<size_t>(longest - context_tokens) - request.prompt.size();
  size_t total = 0;
  for (size_t i = 0; i < request.continuations.size(); ++i) {
    const std::vector<int32_t>& ids = request.continuations[i];
    const std::string field = absl::StrCat("continuations[", i, "]");
    if (ids.empty() || ids.size() > left) {
      return OutOfRange(
          field, ids.size(),
          absl::StrCat("1 to ", left, " tokens: what context and prompt leave of ", longest));
    }
    if (absl::Status status = ValidateTokens(field, ids, limits); !status.ok()) return status;
    total += ids.size();
  }
  if (total > ScoreRequest::kMaxContinuationTokens) {
    return OutOfRange("continuations' tokens together", total,
                      absl::StrCat("at most ", ScoreRequest::kMaxContinuationTokens));
  }
  return absl::OkStatus();
}

absl::Status ValidateRequest(const ContextRequest& request, const RequestLimits& limits) {
  if (absl::Status status = ValidatePrompt(request.prompt, 0, /*may_be_empty=*/false, limits);
      !status.ok()) {
    return status;
  }
  return ValidateKv(request.kv, /*over_context=*/false, /*decodes=*/false);
}

int32_t EffectiveMaxTokens(const GenerateRequest& request, const RequestLimits& limits) {
  return request.stopping.max_tokens.value_or(
      std::min(StoppingParams::kDefaultMaxTokens, Left(request, limits)));
}

}  // namespace ripplekv
