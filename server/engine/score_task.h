#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

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
  absl::Status OnPrefilled() override;
  absl::Status PromptDone(std::vector<float> logits);
  absl::Status StartContinuation();
  absl::Status ScoreRows();
  absl::Status Score(absl::Span<const float> logits, size_t token);
  void EndContinuation();

  std::vector<float> prompt_logits_;  // [vocab], of the first token of each continuation
  std::vector<float> logits_;         // [kMaxRows, vocab]
  bool prompt_done_ = false;
  bool done_ = false;
  size_t current_ = 0;  // continuation at work
  int64_t next_row_ = 0;
  Clock::time_point prefilled_;
  ScoreResult result_;
};

}  // namespace ripplekv
