#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/engine/task.h"

namespace ripplekv {

/// Prefills a prompt once, then pushes each continuation through the model over its cache, which
/// they leave as it is. With a reference the prefill fills the full cache too, and a continuation
/// is pushed over it first, then over the compressed one.
class ScoreTask final : public Task {
 public:
  ScoreTask(int64_t id, const TaskResources& resources, std::unique_ptr<QueuedRequest> request,
            TaskHoldings holdings);

  /// Bytes of logits that scoring holds.
  static size_t WorkBytes(const ModelConfig& config, bool reference);
  /// Multiply-adds of so many rows of logits.
  static int64_t LogitsWork(const ModelConfig& config, int64_t rows);

  bool done() const override { return done_; }
  bool has_slice() const override { return !done_; }
  SlicedTaskView View() const override;
  StepRecord::Slice NextSlice() const override;
  absl::Status RunSlice() override;
  int64_t completion_tokens() const override { return result_.usage.completion_tokens; }
  void Complete() override;

 private:
  const ScoreRequest& score() const { return work_item().request; }
  const ScoreWork& work_item() const { return std::get<ScoreWork>(request_->work); }
  const std::vector<int32_t>& continuation() const { return score().continuations[current_]; }
  bool in_prompt() const { return !prompt_done_; }
  bool referenced() const { return full_cache_.has_value(); }
  int passes() const { return referenced() ? 2 : 1; }
  bool pushing() const { return prefill_.has_value() && !prefill_->done(); }
  absl::Status OnPrefilled() override;
  // What of a row of logits the scores of many tokens need.
  struct Row {
    absl::Span<const float> logits;
    double log_sum = 0;
    int32_t best = -1;

    float Logprob(int32_t id) const {
      return static_cast<float>(logits[static_cast<size_t>(id)] - log_sum);
    }
  };
  static absl::StatusOr<Row> MakeRow(absl::Span<const float> logits);
  // A row over the full cache beside the one over the compressed cache.
  struct Comparison {
    Row full;
    double kl = 0;
    bool top1_agrees = false;
  };
  static absl::StatusOr<Comparison> Compare(absl::Span<const float> full, const Row& compressed);

  int64_t ContinuationWork(const std::vector<int32_t>& continuation) const;
  int64_t next_logits_work() const;
  absl::Status PromptDone(std::vector<float> logits);
  // What follows the prompt over either cache: its last token is queried again.
  absl::Status CompareFirst();
  absl::Status StartContinuation();
  void PushContinuation(SequenceCache* cache);
  absl::Status ScoreRows();
  void Score(const Row& row, const std::optional<Comparison>& comparison, size_t token);
  void EndContinuation();

  std::vector<float> prompt_logits_;  // [vocab], of the first token of each continuation
  Row prompt_row_;
  std::vector<float> first_full_logits_;      // [vocab], with a reference
  std::optional<Comparison> first_compared_;  // with a reference
  std::optional<Prefill> full_pass_;  // the continuation over the full cache, through; then the
                                      // compressed one's turn comes
  int64_t later_work_ = 0;            // of the continuations after the one at work
  std::vector<float> logits_;         // [kMaxRows, vocab]
  std::vector<float> full_logits_;    // [kMaxRows, vocab], with a reference
  bool prompt_done_ = false;
  bool done_ = false;
  size_t current_ = 0;  // continuation at work
  int64_t next_row_ = 0;
  Clock::time_point prefilled_;
  ScoreResult result_;
};

}  // namespace ripplekv
