#pragma once

#include <string>
#include <vector>

#include "client/terminal.h"
#include "ripplekv/v1/calibration.pb.h"

namespace ripplekv {

// A heading and a row each: job, state, progress, start, profile; below a row, why there is no
// profile. Empty for none.
std::string RenderCalibrations(const std::vector<v1::Calibration>& calibrations,
                               const Terminal& terminal);

// One sentence about a calibration that was cancelled.
std::string RenderCancelled(const v1::Calibration& calibration);

}  // namespace ripplekv
