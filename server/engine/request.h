#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "calibration/policy/plan.h"
#include "calibration/policy/selector.h"
#include "kernels/kv_type.h"
#include "model/chat_template.h"

namespace ripplekv {

class ContextLease;
struct ContextInfo;

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

/// How much of the prompt's cache is kept, which rows, and how they are stored. What is absent
/// comes from the plan in force.
struct KvParams {
  std::optional<Size> size;
  std::optional<Allocator> allocator;
  std::optional<SelectorSpec> selector;
  // What every layer stores keys and values in, whatever the plan says layer by layer. Where one of
  // them is given, the other is the server's own (PlanSpec::kv_types).
  std::optional<KvType> key_type;
  std::optional<KvType> value_type;
  // Bounded decode growth: rows a layer may grow beyond the prompt's before it is compacted back to
  // them, [kMinGrowthCap, kMaxGrowthCap]; 0: it grows with the output.
  std::optional<int32_t> growth_cap;
  static constexpr int32_t kMinGrowthCap = 16;
  static constexpr int32_t kMaxGrowthCap = 1 << 20;
};

/// What a context was made from. Requests over it need it whole: penalties count its tokens, and a
/// chat goes on from its messages.
struct ContextOrigin {
  std::vector<int32_t> tokens;
  std::vector<ChatMessage> chat;  // empty: not made from a chat
};

struct GenerateRequest {
  std::string id;  // for logs; the engine does not interpret it
  // 1 token at least; with the context's tokens at most context_length - 1.
  std::vector<int32_t> prompt;
  // The prompt goes on from it, at the positions that follow; every row of the prompt is kept then,
  // and of `kv` only growth_cap may be given. Null: none.
  std::shared_ptr<const ContextLease> context;
  SamplingParams sampling;
  StoppingParams stopping;
  KvParams kv;
  std::optional<int32_t>
      logprobs;  // absent: none; n in [0, 20]: the token's own and the n likeliest
  // Measure KL(exact prefill || compressed cache) at the prompt's last token, and its floor. Not
  // over a context.
  bool next_token_kl = false;
  std::optional<Clock::time_point> deadline;  // DEADLINE_EXCEEDED once passed, queued or running
};

/// Log-likelihoods of given continuations of a prompt, which is prefilled once.
struct ScoreRequest {
  static constexpr int kMaxContinuations = 256;
  static constexpr size_t kMaxContinuationTokens = 65536;  // of all of them
  std::string id;
  std::vector<int32_t> prompt;  // may be empty over a context
  std::shared_ptr<const ContextLease> context;
  // 1 to kMaxContinuations, each of at least one token; context, prompt and any of them within
  // context_length.
  std::vector<std::vector<int32_t>> continuations;
  KvParams kv;  // as in GenerateRequest; growth_cap has no meaning and must be absent
  // Keep the full cache too and compare every token's distributions. Not over a context.
  bool reference = false;
  std::optional<Clock::time_point> deadline;
};

/// A prompt to be compressed once and asked often.
struct ContextRequest {
  std::string id;
  std::vector<int32_t> prompt;    // 1 to context_length - 1 tokens
  KvParams kv;                    // fixed for all requests over it; growth_cap must be absent
  std::string owner;              // the caller's identity
  std::string key;                // the context's id starts with it and a dot; empty: with neither
  std::vector<ChatMessage> chat;  // what the prompt was rendered from, if a chat
  std::optional<Clock::time_point> deadline;
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
  KvTypes types{};        // that they are stored in
};

struct Usage {
  int64_t context_tokens = 0;  // of the context, not prefilled again
  int64_t prompt_tokens = 0;   // prefilled
  int64_t completion_tokens = 0;
};

struct Timings {
  double queue_seconds = 0;    // submitted -> started
  double prefill_seconds = 0;  // started -> first token's logits, without the next_token_kl query
  double decode_seconds = 0;   // the rest; Score: the continuations
  double first_token_seconds = 0;  // submitted -> first token delivered
};

/// What a sequence's cache took, a context's rows included.
struct CacheUsage {
  std::vector<LayerUsage> layers;  // one a layer
  size_t kept_bytes = 0;           // of the kept rows, without the rounding up to pages
  size_t full_bytes = 0;           // of the rows if every position were kept in the server's types
  size_t peak_prefill_bytes = 0;   // this request's KV pages and full layer at their highest
};

struct Completion {
  FinishReason finish_reason = FinishReason::kMaxTokens;
  std::string matched_stop_string;  // kStopString
  int32_t matched_stop_token = -1;  // kEndOfText, kStopTokenId
  Usage usage;
  CacheUsage cache;
  int64_t compactions = 0;  // of layers, by bounded growth
  Timings timings;
  // Nats, >= 0; where asked for or sampled. The floor is the same query over all of the prompt's
  // rows: what the two kernels differ by, at retention 1.0.
  std::optional<double> next_token_kl;
  std::optional<double> next_token_kl_floor;
  uint64_t seed = 0;  // the effective one
};

/// A token's distribution over the full cache (P) beside that over the compressed one (Q), by the
/// same kernels after the same tokens. Of a continuation's first token both come from querying the
/// prompt's last token again, as next_token_kl does.
struct ReferenceScore {
  double kl = 0;  // KL(P || Q) in nats, >= 0
  bool top1_agrees = false;
  float logprob = 0;  // of the token in P

  bool operator==(const ReferenceScore&) const = default;
};

struct TokenScore {
  int32_t token = 0;
  float logprob = 0;    // natural log, of the raw logits; a first token's: of the exact prefill's
  bool greedy = false;  // no token is likelier (ties to the lower id)
  std::optional<ReferenceScore> reference{};  // where asked for
};

struct ContinuationScore {
  std::vector<TokenScore> tokens;
  double logprob = 0;               // the sum
  bool greedy = false;              // all of its tokens are
  std::optional<double> mean_kl{};  // over its tokens, where a reference was asked for
};

struct ScoreResult {
  std::vector<ContinuationScore> continuations;  // in the request's order
  Usage usage;                                   // completion_tokens: of all continuations
  CacheUsage cache;
  Timings timings;
};

/// Receives one request's events, on the engine's thread; must not block. After OnComplete or
/// OnError, of which exactly one comes, nothing follows.
class RequestSink {
 public:
  virtual ~RequestSink() = default;
  /// Prefill begins.
  virtual void OnStart() {}
  /// CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE (shutdown), RESOURCE_EXHAUSTED (the payload
  /// kRetryLater where it waited too long), INTERNAL.
  virtual void OnError(absl::Status status) = 0;
};

class GenerationSink : public RequestSink {
 public:
  virtual void OnTokens(TokenChunk chunk) = 0;
  virtual void OnComplete(Completion completion) = 0;
};

class ScoreSink : public RequestSink {
 public:
  virtual void OnComplete(ScoreResult result) = 0;
};

class ContextSink : public RequestSink {
 public:
  /// The context can be used from now on.
  virtual void OnComplete(ContextInfo context) = 0;
};

}  // namespace ripplekv
