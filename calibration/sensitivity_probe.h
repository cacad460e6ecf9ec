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

/// Measures how far perturbing one layer's cached values moves the output. Apart from the probe
/// itself (which multiplies with LibTorch) so that jobs, their tests and sanitizers do without it.
class SensitivityProbe : public BackgroundJob {
 public:
  virtual ProbeProgress progress() const = 0;
  /// [examples][layers]: mean KL in nats over the example's window. Complete once done() is true.
  virtual const std::vector<std::vector<double>>& divergences() const = 0;
};

}  // namespace ripplekv
