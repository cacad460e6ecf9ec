#pragma once

#include <vector>

#include "calibration/background_job.h"

namespace ripplekv {

/// Where a measurement stands.
struct ProbeProgress {
  int examples_done = 0;
  int examples_total = 0;
  int layer =
      0;  // the layer the next slice works at; the model's layer count while divergences are taken
  double fraction = 0;  // of the slices, 0 ... 1
};

/// What a probe measured, example by example. Divergences are mean KL in nats over the example's
/// window.
struct ProbeMeasurements {
  std::vector<std::vector<double>> sensitivity;  // [examples][layers]: divergence with the layer's
                                                 // values perturbed
  // [examples][layers]: how far the same perturbation moves the residual stream h behind the layer
  // itself, mean over the window of ||h' - h||_2 / ||h||_2.
  std::vector<std::vector<double>> local_response;
  // Of the settings' last damage_examples examples, each [layers][damage_retentions]: divergence
  // with the layer keeping fewer rows.
  std::vector<std::vector<std::vector<double>>> rows;
  // The same, each [layers][kDamageTypes] (empty without damage_storage): with the layer keeping
  // all rows in fewer bits.
  std::vector<std::vector<std::vector<double>>> storage;
  // Of the examples of the sizes, each [prompt lengths][retentions]: divergence with every layer
  // compressed.
  std::vector<std::vector<std::vector<double>>> sizes;
};

/// Measures how far altering one layer's cached rows moves the output. Apart from the probe
/// itself (which multiplies with LibTorch) so that jobs, their tests and sanitizers do without it.
class SensitivityProbe : public BackgroundJob {
 public:
  virtual ProbeProgress progress() const = 0;
  /// Complete once done() is true.
  virtual const ProbeMeasurements& measurements() const = 0;
};

}  // namespace ripplekv
