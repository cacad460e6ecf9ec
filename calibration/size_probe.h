#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "calibration/layer_pass.h"
#include "calibration/policy/plan.h"
#include "calibration/row_copy.h"
#include "calibration/row_selector.h"
#include "calibration/sensitivity_probe.h"
#include "calibration/settings.h"
#include "calibration/window_divergence.h"
#include "model/decoder.h"

namespace ripplekv {

/// Measures what compressing the whole model costs by size, sliced by depth so that it holds one
/// layer's K and V.
///
/// An example ends in its window, which is teacher-forced over a prompt of each of the settings'
/// lengths: the tokens right before it. P_t is the distribution that follows window token t over
/// the whole prompt's rows; Q_{r,t} the same where every layer keeps the rows and types that the
/// plan gives it for the retention r, chosen as prefill chooses them.
///
///   sizes[example][length][r] = mean over t of KL(P_t || Q_{r,t}), natural logarithm.
///
/// This is what Score measures with a reference, of those tokens, under the same plan. The prompt
/// goes through a layer once for all retentions. All windows go through the same calls with the
/// same shapes, hence a retention that keeps all rows as they are gives exactly 0, and no result
/// depends on what runs between the slices or on the thread count.
class SizeProbe final : public SensitivityProbe {
 public:
  /// `plan`: for the decoder's model, one that needs no size. `examples`: settings.sizes.examples
  /// lists of exactly size_example_tokens() ids. The decoder outlives the probe; other work may use
  /// it between slices. INVALID_ARGUMENT names what does not fit, the plan's errors.
  static absl::StatusOr<std::unique_ptr<SizeProbe>> Create(
      Decoder* decoder, const CalibrationSettings& settings, const Plan& plan,
      std::vector<std::vector<int32_t>> examples);

  absl::Status Step() override;
  bool done() const override { return example_ == tokens_.size(); }
  ProbeProgress progress() const override;
  /// Only the sizes.
  const ProbeMeasurements& measurements() const override { return measurements_; }

 private:
  using Budgets = std::vector<std::vector<LayerBudgets>>;  // [lengths][retentions]

  SizeProbe(Decoder* decoder, const CalibrationSettings& settings, const Plan& plan,
            Budgets budgets, std::vector<std::vector<int32_t>> examples);

  const std::vector<LayerBudgets>& budgets() const { return budgets_[length_]; }  // of the prompt
  int64_t prompt_tokens() const { return settings_.sizes.prompt_tokens[length_]; }
  size_t retentions() const { return settings_.sizes.retentions.size(); }
  float* Window(size_t variant) {
    return windows_.data() + variant * static_cast<size_t>(settings_.window_tokens) *
                                 static_cast<size_t>(decoder_->config().hidden);
  }
  int64_t SlicesOf(int64_t prompt_tokens) const;

  void StartPrompt();
  absl::Status RunPrompt();
  absl::Status RunWindows();
  absl::StatusOr<RowsBefore> Compressed(const LayerBudgets& budgets);
  absl::Status TakeDivergences();
  absl::Status Record();

  Decoder* const decoder_;
  const CalibrationSettings settings_;
  const SelectorSpec selector_spec_;
  const int sinks_;
  const Budgets budgets_;
  const std::vector<std::vector<int32_t>> tokens_;
  size_t slice_windows_ = 1;  // that go through a layer in one slice
  int64_t slices_total_ = 0;

  // The place of the next slice.
  size_t example_ = 0;
  size_t length_ = 0;
  int layer_ = 0;      // the model's layer count: divergences are taken
  int64_t next_ = 0;   // first token of the prompt's next slice; all of them: windows are next
  size_t window_ = 0;  // the next one: 0 is the clean one, r + 1 that of retention r
  int row_ = 0;        // first window row of the tile whose logits are next
  int64_t slices_done_ = 0;

  LayerRows rows_;                       // of the layer at work
  std::vector<std::byte> k_, v_;         // [kv_heads, longest prompt + window, d]
  std::optional<RowSelector> selector_;  // where a layer keeps fewer rows than all
  RowCopy copy_;
  LayerPass pass_;
  WindowDivergence divergence_;
  std::vector<float> prompt_;   // [prompt_tokens, hidden]
  std::vector<float> windows_;  // [1 + retentions][window_tokens, hidden]
  std::vector<double> kl_;      // [retentions][window_tokens]
  ProbeMeasurements measurements_;
};

}  // namespace ripplekv
