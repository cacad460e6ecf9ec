#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "server/engine/request.h"

namespace ripplekv {

/// Draws one request's tokens from raw logits. The transforms, in this order:
///
///   repetition penalty r (tokens of prompt and output): x > 0: x / r, else x * r
///   presence and frequency penalty (output only):       x - presence - frequency * count
///   logit bias:                                          x + bias
///   temperature t:                                       softmax(x / t)          (0: the highest
///   x, ties to the lower id) top_k:  the k highest; ties to the lower id top_p:  the fewest of
///   them, highest first, whose probability among them reaches p min_p:  of those, the ones at
///   least min_p times as likely as the likeliest
///
/// and one uniform number for the choice, a hash of (seed, step). So the token of a step is a
/// function of the parameters, the tokens before it and its logits. Not thread-safe; no allocation
/// a step once warm.
class Sampler {
 public:
  /// `params` are valid (ValidateRequest); `seed` replaces params.seed. Ids are below `vocab`.
  Sampler(const SamplingParams& params, uint64_t seed, int vocab, absl::Span<const int32_t> prompt);

  /// The next token. logits: [vocab], finite; `banned` ids are never drawn (fewer than vocab of
  /// them).
  int32_t Sample(absl::Span<const float> logits, absl::Span<const int32_t> banned);

  /// Counts a token of the output; the next Sample is the next step.
  void Accept(int32_t token);

  uint64_t seed() const { return seed_; }

  /// Bytes that it holds once warm.
  static size_t WorkBytes(int vocab) {
    return static_cast<size_t>(vocab) *
           (sizeof(Candidate) + 2 * sizeof(double) + sizeof(int32_t) + sizeof(uint8_t));
  }

 private:
  struct Candidate {
    double logit;
    int32_t id;
  };
  static bool Better(const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  }
  void KeepTopP();

  SamplingParams params_;
  uint64_t seed_;
  int64_t step_ = 0;
  std::vector<int32_t> penalised_;                // distinct ids of prompt and output
  std::vector<uint8_t> seen_;                     // [vocab], whether in penalised_
  absl::flat_hash_map<int32_t, int64_t> counts_;  // of the output
  std::vector<double> work_;                      // [vocab]
  std::vector<Candidate> candidates_;
  std::vector<double> weights_;
};

/// Uniform in [0, 1), 53 bits: a hash of its arguments.
double UniformDraw(uint64_t seed, uint64_t step);

/// A seed for a request that gave none, from the operating system's entropy.
uint64_t MakeSeed();

/// log(sum of exp(logits)), in double. logits: finite.
double LogSumExp(absl::Span<const float> logits);

/// log softmax of raw logits for `token`, and the `top` likeliest (ties by lower id). logits:
/// finite.
TokenLogprob Logprobs(absl::Span<const float> logits, int32_t token, int top);

}  // namespace ripplekv
