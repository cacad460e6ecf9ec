#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "calibration/policy/plan.h"
#include "calibration/policy/selector.h"

namespace ripplekv {

using Clock = std::chrono::steady_clock;

/// Payload of a RESOURCE_EXHAUSTED that passes by itself, once other requests have ended.
inline constexpr char kRetryLater[] = "ripplekv/retry-later";

/// How the next token is drawn. Applied in this order: repetition, presence and frequency penalty,
/// logit bias, temperature, top_k, top_p, min_p. Logprobs are those of the raw logits, before any
/// of it.
struct SamplingParams {
  double temperature =
      0;  // [0, 100]; 0: greedy (penalties and bias still apply; the filters have no effect)
  int32_t top_k = 0;  // [0, vocabulary]; 0: off
  double top_p = 1;   // (0, 1]
  double min_p = 0;   // [0, 1]: drops tokens less likely than min_p times the likeliest
  double repetition_penalty =
      1;  // [0.01, 10]: over prompt and output; logit > 0: divided by it, else multiplied
  double presence_penalty = 0;   // [-10, 10]: subtracted once from every token of the output
  double frequency_penalty = 0;  // [-10, 10]: subtracted for every occurrence in the output
  std::optional<uint64_t> seed;  // made if absent; the draw of step n depends on seed and n only
  std::vector<std::pair<int32_t, float>>
      logit_bias;  // token id, [-100, 100]; at most 1024, each token once
};

/// When generation ends.
struct StoppingParams {
  static constexpr int32_t kDefaultMaxTokens = 256;
  std::optional<int32_t>
      max_tokens;  // >= 1; default kDefaultMaxTokens clamped to the context, an explicit one is not
  int32_t min_tokens = 0;  // [0, max_tokens]: no end-of-text, stop id or stop string before so many
  std::vector<std::string> stop_strings;  // at most 16, each 1 to 256 bytes; never part of the text
  std::vector<int32_t> stop_token_ids;    // at most 256
  bool ignore_eos = false;                // end-of-text tokens are tokens like others
};

/// How much of the prompt's cache is kept, and which rows. What is absent comes from the plan in
/// force.
struct KvParams {
  std::optional<Size> size;
  std::optional<Allocator> allocator;
  std::optional<SelectorSpec> selector;
};

struct GenerateRequest {
  std::string id;               // for logs; the engine does not interpret it
  std::vector<int32_t> prompt;  // 1 to context_length - 1 tokens
  SamplingParams sampling;
  StoppingParams stopping;
  KvParams kv;
  std::optional<int32_t>
      logprobs;  // absent: none; n in [0, 20]: the token's own and the n likeliest
  bool next_token_kl =
      false;  // measure KL(exact prefill || compressed cache) at the prompt's last token
  std::optional<Clock::time_point> deadline;  // DEADLINE_EXCEEDED once passed, queued or running
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;                           // natural log
  std::vector<std::pair<int32_t, float>> top;  // likeliest first; ties by lower id
};

/// A piece of output. Text never splits a UTF-8 character and never holds (part of) a stop string,
/// so it may lag behind the tokens and be empty. Joined over all chunks it is the decoded output up
/// to the stop string.
struct TokenChunk {
  std::string text;
  std::vector<int32_t> token_ids;      // every generated token, the ending one included
  std::vector<TokenLogprob> logprobs;  // one a token, where asked for
};

enum class FinishReason {
  kEndOfText,    // the model's own end-of-text token
  kStopTokenId,  // a token of stop_token_ids
  kStopString,
  kMaxTokens,  // max_tokens, the context's end included
};

struct LayerUsage {
  int64_t positions = 0;  // kept per KV head after prefill
  size_t bytes = 0;       // of the pages that they take
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
};

struct Timings {
  double queue_seconds = 0;    // submitted -> started
  double prefill_seconds = 0;  // started -> first token's logits, without the next_token_kl query
  double decode_seconds = 0;   // the rest
  double first_token_seconds = 0;  // submitted -> first token delivered
};

struct Completion {
  FinishReason finish_reason = FinishReason::kMaxTokens;
  std::string matched_stop_string;  // kStopString
  int32_t matched_stop_token = -1;  // kEndOfText, kStopTokenId
  Usage usage;
  std::vector<LayerUsage> layers;  // one a layer
  size_t kept_bytes = 0;           // of the kept rows, without the rounding up to pages
  size_t full_bytes = 0;           // of the prompt's rows if every position were kept
  size_t peak_prefill_bytes = 0;   // this request's KV pages and full layer at their highest
  Timings timings;
  std::optional<double> next_token_kl;  // nats, where asked for; >= 0 up to rounding
  uint64_t seed = 0;                    // the effective one
};

/// Receives one request's events, on the engine's thread; must not block. After OnComplete or
/// OnError, of which exactly one comes, nothing follows.
class GenerationSink {
 public:
  virtual ~GenerationSink() = default;
  /// Prefill begins.
  virtual void OnStart() {}
  virtual void OnTokens(TokenChunk chunk) = 0;
  virtual void OnComplete(Completion completion) = 0;
  /// CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE (shutdown), RESOURCE_EXHAUSTED, INTERNAL.
  virtual void OnError(absl::Status status) = 0;
};

}  // namespace ripplekv
