#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "calibration/altered_rows.h"
#include "calibration/row_copy.h"
#include "calibration/sensitivity_probe.h"
#include "calibration/settings.h"
#include "model/decoder.h"

namespace ripplekv {

/// The sensitivity probe (arXiv 2608.08684), sliced by depth so that it holds one layer's K and V.
///
/// An example is prefix_tokens + window_tokens token ids. The prefix builds the cache; the window
/// is teacher-forced over it: window token t is fed at position prefix_tokens + t, and P_t is the
/// distribution that follows it, so all window_tokens positions are measured and the prefix's own
/// predictions are not. Q_{l,a,t} is the same with layer l's cached prefix rows altered:
///   perturbed  its values at the prefix positions [sinks, prefix_tokens - recent) of every KV head
///   kept       it keeps the rows of one retention, chosen as prefill chooses them: by the queries
///              and keys of the layer itself (RowSelector)
///   stored     it keeps every row, keys and values rounded to one of kDamageTypes
/// The window's own rows stay as they are. What is measured is
///
///   divergence[example][l][a] = mean over t of KL(P_t || Q_{l,a,t}), natural logarithm.
///
/// All examples are perturbed, the settings' last damage_examples also kept and stored.
///
/// At layer j the slices push the prefix through j (chunks of Decoder::kChunkTokens), then the
/// window of every variant: "clean", and one for each alteration of each layer l <= j. Variant
/// (l, a) starts from the clean hidden state that enters layer l, so layers below l are never
/// recomputed. All windows go through the same calls with the same shapes, hence eta = 0 gives
/// exactly 0, as a retention that keeps all rows does, and no result depends on what runs together
/// or on the thread count.
class Probe final : public SensitivityProbe {
 public:
  /// How slices are ordered. Only memory and speed depend on it, never a bit of the result.
  struct Batching {
    // Alterations of examples (one or several of an example, one each of several examples) taken
    // through the layers together: one expansion of a layer's weights serves them all, and those of
    // one example share its prefix pass. Each holds layers windows of hidden states; >= 1.
    int alterations = 4;
    int variants = 2;  // whose logits are taken in one slice; >= 1
  };

  /// `examples`: settings.examples lists of exactly prefix_tokens + window_tokens ids. The decoder
  /// must outlive the probe; other work may use it between slices. INVALID_ARGUMENT names what does
  /// not fit.
  static absl::StatusOr<std::unique_ptr<Probe>> Create(Decoder* decoder,
                                                       const CalibrationSettings& settings,
                                                       std::vector<std::vector<int32_t>> examples,
                                                       Batching batching);
  static absl::StatusOr<std::unique_ptr<Probe>> Create(Decoder* decoder,
                                                       const CalibrationSettings& settings,
                                                       std::vector<std::vector<int32_t>> examples) {
    return Create(decoder, settings, std::move(examples), Batching());
  }
  ~Probe() override;

  absl::Status Step() override;
  bool done() const override { return next_group_ == static_cast<int>(groups_.size()); }
  ProbeProgress progress() const override;
  const ProbeMeasurements& measurements() const override { return measurements_; }

  /// Bytes held for hidden states, one layer of K and V and its altered copy, and logits.
  size_t scratch_bytes() const;

 private:
  /// Alterations [first, first + count) of an example's list, which share a prefix pass.
  struct Pass {
    int example = 0;
    int first = 0;
    int count = 0;
    bool last = false;  // of the example
  };
  struct State;    // hidden states of one pass on its way through the layers
  struct Scratch;  // one layer's K and V, what alters and reads them, logits

  Probe(Decoder* decoder, const CalibrationSettings& settings,
        std::vector<std::vector<int32_t>> examples, Batching batching);

  void PlanGroups();
  int AlterationsOf(int example) const;
  bool Selects(const Pass& pass) const;  // rows to keep
  int64_t SlicesOf(const Pass& pass) const;
  void StartGroup();
  absl::Status RunPrefix(State& state);
  absl::Status RunVariants(State& state);
  absl::Status RunAltered(State& state, int alteration, float* window);
  RowsBefore WholePrefix() const;
  absl::Status RunWindow(const RowsBefore& before, float* window);
  absl::Status TakeResponse(State& state, const float* window);
  absl::Status TakeDivergences(State& state);
  absl::Status Record(const State& state);
  float* Window(State& state, int variant) const;  // [window_tokens, hidden]

  Decoder* decoder_;
  CalibrationSettings settings_;
  std::vector<std::vector<int32_t>> tokens_;
  Batching batching_;
  std::vector<Alteration> alterations_;  // of an example with damage; the others have the first
  int slice_variants_ = 1;               // whose windows run through a layer in one slice
  std::vector<std::vector<Pass>> groups_;
  int64_t slices_total_ = 0;

  // The place of the next slice.
  int next_group_ = 0;  // the number of groups: done
  int layer_ = 0;       // the model's layer count: divergences are taken
  int in_group_ = 0;    // pass within the group
  int variant_ = -1;    // whose window is next; -1: the prefix and the clean window
  int row_ = 0;         // first window row of the tile whose logits are next
  int64_t slices_done_ = 0;
  int examples_done_ = 0;

  std::vector<State> group_;
  std::unique_ptr<Scratch> scratch_;
  ProbeMeasurements measurements_;
};

}  // namespace ripplekv
