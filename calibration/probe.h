#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "calibration/sensitivity_probe.h"
#include "calibration/settings.h"
#include "model/decoder.h"

namespace ripplekv {

/// The sensitivity probe (arXiv 2608.08684), sliced by depth so that it holds one layer's K and V.
///
/// An example is prefix_tokens + window_tokens token ids. The prefix builds the cache; the window
/// is teacher-forced over it: window token t is fed at position prefix_tokens + t, and P_t is the
/// distribution that follows it, so all window_tokens positions are measured and the prefix's own
/// predictions are not. Q_{l,t} is the same with layer l's cached values perturbed at the prefix
/// positions [sinks, prefix_tokens - recent) of every KV head; keys, protected positions and the
/// window's own rows stay as they are. The result is
///
///   divergence[example][l] = mean over t of KL(P_t || Q_{l,t}), natural logarithm.
///
/// At layer j the slice pushes the prefix through j (chunks of Decoder::kChunkTokens), then the
/// window of every variant: "clean", and one for each perturbed layer l <= j. Variant l starts from
/// the clean hidden state that enters layer l, so layers below l are never recomputed. All windows
/// go through the same calls with the same shapes, hence eta = 0 gives exactly 0, and no result
/// depends on what runs together or on the thread count.
class Probe final : public SensitivityProbe {
 public:
  /// How slices are ordered. Only memory and speed depend on it, never a bit of the result.
  struct Batching {
    int examples = 4;  // taken through the layers together: one expansion of a layer's weights
                       // serves them all; >= 1
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
  bool done() const override;
  ProbeProgress progress() const override;
  const std::vector<std::vector<double>>& divergences() const override { return divergences_; }

  /// Bytes held for hidden states, one layer of K and V, and logits.
  size_t scratch_bytes() const;

 private:
  struct Example;  // hidden states of one example on its way through the layers
  struct Scratch;  // one layer's K and V, a chunk's q and attention, logits

  Probe(Decoder* decoder, const CalibrationSettings& settings,
        std::vector<std::vector<int32_t>> examples, Batching batching);

  void StartGroup();
  absl::Status RunLayer(Example& example);
  absl::Status RunTokens(int first, int count, std::byte* v, float* hidden, bool only_rows = false);
  void PerturbLayerValues(int example_index);
  absl::Status TakeDivergences(Example& example);
  float* Window(Example& example, int variant) const;  // [window_tokens, hidden]

  Decoder* decoder_;
  CalibrationSettings settings_;
  std::vector<std::vector<int32_t>> tokens_;
  Batching batching_;

  // The place of the next slice.
  int group_start_ = 0;  // first example of the group; the number of examples: done
  int layer_ = 0;        // the model's layer count: divergences are taken
  int in_group_ = 0;     // example within the group
  int row_ = 0;          // first window row of the tile whose logits are next
  int variant_ = 0;      // perturbed layer whose logits are next
  int64_t slices_done_ = 0;

  std::vector<Example> group_;
  std::unique_ptr<Scratch> scratch_;
  std::vector<std::vector<double>> divergences_;
};

}  // namespace ripplekv
