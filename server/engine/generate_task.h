#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "server/engine/output_stream.h"
#include "server/engine/sampler.h"
#include "server/engine/task.h"

namespace ripplekv {

/// Prefills a prompt, over a context or not, and decodes.
class GenerateTask final : public Task {
 public:
  GenerateTask(int64_t id, const TaskResources& resources, std::unique_ptr<QueuedRequest> request,
               TaskHoldings holdings);

  /// Bytes that decoding holds beside the cache: sampler, a row of logits and one to compare it
  /// with, and the rows' attention mass where growth is bounded (tracked_rows: the capacities'
  /// sum).
  static size_t WorkBytes(const ModelConfig& config, int64_t tracked_rows);

  bool done() const override { return done_; }
  bool decoding() const override { return !prefill_.has_value() && !done_; }
  absl::Status Prepare() override;
  DecodeRow Row() override;
  absl::Status Accept(absl::Span<const float> logits) override;
  int64_t completion_tokens() const override { return output_.tokens(); }
  void Complete() override;

 private:
  const GenerateRequest& generate() const { return work_item().request; }
  const GenerateWork& work_item() const { return std::get<GenerateWork>(request_->work); }
  absl::Status OnPrefilled() override;
  absl::Status MeasureNextTokenKl(absl::Span<const float> exact);
  absl::Status Emit(absl::Span<const float> logits);

  Sampler sampler_;
  OutputStream output_;
  int32_t last_token_ = -1;
  Clock::time_point prefilled_;
  Clock::time_point last_emitted_;
  bool done_ = false;
  Completion completion_;
};

}  // namespace ripplekv
