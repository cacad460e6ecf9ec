#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/engine/task.h"

namespace ripplekv {

/// Prefills a prompt once, then pushes each continuation through the model over its cache, which
/// they leave as it is.
class ScoreTask final : public Task {
 public:
  ScoreTask(int64_t id, const TaskResources& resources, std::unique_ptr<QueuedRequest> request,
            TaskHoldings holdings);

  /// Bytes of logits that scoring holds.
  static size_t WorkBytes(const ModelConfig& config);
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
  bool pushing() const { return prefill_.has_value() && !prefill_->done(); }
  absl::Status OnPrefilled() override;
  // What of a row of logits the scores of many tokens need.
  struct Row {
    absl::Span<const float> logits;
    double log_sum = 0;
    int32_t best = -1;
  };
  static absl::StatusOr<Row> MakeRow(absl::Span<const float> logits);

  int64_t ContinuationWork(const std::vector<int32_t>& continuation) const;
  int64_t next_logits_work() const;
  absl::Status PromptDone(std::vector<float> logits);
  absl::Status StartContinuation();
  absl::Status ScoreRows();
  void Score(const Row& row, size_t token);
  void EndContinuation();

  std::vector<float> prompt_logits_;  // [vocab], of the first token of each continuation
  Row prompt_row_;
  int64_t later_work_ = 0;     // of the continuations after the one at work
  std::vector<float> logits_;  // [kMaxRows, vocab]
  bool prompt_done_ = false;
  bool done_ = false;
  size_t current_ = 0;  // continuation at work
  int64_t next_row_ = 0;
  Clock::time_point prefilled_;
  ScoreResult result_;
};

}  // namespace ripplekv
