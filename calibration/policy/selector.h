#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/pooling.h"

namespace ripplekv {

// Selectors decide which positions a layer keeps, per KV head. This file holds their parameters,
// which queries vote, what becomes of their votes, and the final choice; the attention that they
// count is summed where queries and keys are (kernels/key_scores.h). docs/selectors.md compares
// them.
//
// T: prompt tokens; A[t, u]: the softmax attention of the query at t to the key at u <= t, of one
// query head, in fp32. A KV head's score is the mean over its query heads. All selectors keep the
// first `sinks` and the last `window` positions (1 to 1024 tokens) whatever they score.

// arXiv 2404.14469. The mean of A[t, u] over the last `window` queries, pooled along the positions
// before the window (stride 1, `kernel` wide, centred).
struct SnapKv {
  int window = 32;  // 1 to 1024 tokens
  int kernel = 7;   // odd, 1 to 63 positions
  Pooling pooling = Pooling::kMax;

  bool operator==(const SnapKv&) const = default;
};

// arXiv 2306.14048: accumulated attention, the sum of A[t, u] over queries spread evenly over the
// prompt, all of them where there are no more. Normalised: divided by the number of those queries
// with t >= u, which is what kvpress' ObservedAttentionPress counts.
struct H2o {
  int window = 32;
  int queries = 256;  // 1 to 512
  bool normalised = false;

  bool operator==(const H2o&) const = default;
};

// The normalised sum over the last `queries` queries only, pooled as SnapKV's.
struct RecentAttention {
  int window = 32;
  int queries = 256;  // 1 to 512
  int kernel = 7;     // odd, 1 to 63 positions
  Pooling pooling = Pooling::kNone;

  bool operator==(const RecentAttention&) const = default;
};

// weight * SnapKV's score + (1 - weight) * RecentAttention's without pooling, each divided by its
// sum over the positions to choose from (MixScores).
struct MixedAttention {
  SnapKv snapkv{};
  int queries = 256;    // RecentAttention's, 1 to 512
  double weight = 0.5;  // SnapKV's share, 0 to 1

  bool operator==(const MixedAttention&) const = default;
};

// arXiv 2309.17453: the sinks and the most recent positions. Keys keep their positions, as in
// kvpress' StreamingLLMPress.
struct StreamingLlm {
  int window = 32;

  bool operator==(const StreamingLlm&) const = default;
};

// Positions drawn evenly, for comparison (RandomScores).
struct RandomPositions {
  int window = 32;
  uint64_t seed = 0;

  bool operator==(const RandomPositions&) const = default;
};

using SelectorSpec =
    std::variant<SnapKv, H2o, RecentAttention, MixedAttention, StreamingLlm, RandomPositions>;

// One of each kind.
struct Selectors {
  SnapKv snapkv{};
  H2o h2o;
  RecentAttention recent_attention;
  MixedAttention mixed;
  StreamingLlm streaming_llm;
  RandomPositions random;
};

// "snapkv", "h2o", "recent_attention", "mixed", "streaming_llm" or "random".
std::string SelectorName(const SelectorSpec& selector);
// "max", "mean" or "none".
std::string PoolingName(Pooling pooling);

// INVALID_ARGUMENT naming field, value and range.
absl::Status ValidateSelector(const SelectorSpec& selector);

// Most recent positions that the selector always keeps.
int SelectorWindow(const SelectorSpec& selector);

// Positions of the queries whose attention the selector counts, ascending, none twice; empty where
// it counts none. They depend on the prompt's length alone:
//   H2o: floor((i + 1) T / n) - 1 for i < n = min(queries, T), the last one among them;
//   SnapKv, RecentAttention, MixedAttention: the last ones, of MixedAttention for both its scores.
std::vector<int32_t> VotingQueries(const SelectorSpec& selector, int64_t prompt_tokens);
// How many they are at most.
int MaxVotingQueries(const SelectorSpec& selector);

// out[u] = weight * snapkv[u] / sum(snapkv) + (1 - weight) * recent[u] / sum(recent), the sums over
// u >= sinks, in double; a sum of 0 divides by 1. All of one size; out may be one of the others.
void MixScores(absl::Span<const float> snapkv, absl::Span<const float> recent, int sinks,
               double weight, absl::Span<float> out);

// One number in [0, 1) a position, from Philox4x32-10 with key = seed and counter = {position,
// KV head, layer, 0x73656c65}: the upper 24 bits of its first word / 2^24.
std::vector<float> RandomScores(uint64_t seed, int layer, int kv_head, int64_t positions);

// The positions that one KV head keeps: exactly `budget` of them, ascending. The first `sinks` and
// the last `window` positions are always among them; the best-scored of the rest fill up. Equal
// scores go to the lower position; NaN counts as the lowest score of all, like -inf.
//
// scores: [max(0, prompt_tokens - window)], pooled, one KV head; those of the sinks are not read.
// budget: min(sinks + window, prompt_tokens) to prompt_tokens.
// O(prompt_tokens). INVALID_ARGUMENT names the argument, its value and its range.
absl::StatusOr<std::vector<int32_t>> SelectPositions(absl::Span<const float> scores,
                                                     int64_t prompt_tokens, int64_t budget,
                                                     int sinks, int window);

// StreamingLlm's: the first min(sinks, budget) positions and the last of the budget. budget: as for
// SelectPositions, with its errors.
absl::StatusOr<std::vector<int32_t>> SelectRecent(int64_t prompt_tokens, int64_t budget, int sinks,
                                                  int window);

}  // namespace ripplekv
