#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/calibration_examples.h"
#include "calibration/probe.h"
#include "calibration/sensitivity_probe.h"
#include "calibration/settings.h"
#include "model/decoder.h"

namespace ripplekv {

/// All that the settings ask for: Probe's measurements, then SizeProbe's under the plan that they
/// give (SizePlan). The decoder outlives the probe; other work may use it between slices. Errors as
/// of their Create; a plan that cannot be made is an error of the slice that ends the first stage.
absl::StatusOr<std::unique_ptr<SensitivityProbe>> MakeCalibrationProbe(
    Decoder* decoder, const CalibrationSettings& settings, CalibrationExamples examples,
    Probe::Batching batching = {});

}  // namespace ripplekv
