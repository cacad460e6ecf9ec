#pragma once

#include <string>

#include "client/terminal.h"
#include "ripplekv/v1/calibration.pb.h"

namespace ripplekv {

enum class ChartScale { kAuto, kLinear, kLog };

// The profile's origin, a bar a layer of s_l with its standard error, the ratio of the greatest to
// the least, the split-half rank agreement, and what compressing each layer alone costs and the
// whole model by size, where those were measured.
std::string RenderProfile(const v1::GetProfileResponse& response, ChartScale scale,
                          const Terminal& terminal);

// One profile of a list: id, model, settings, when it was measured.
std::string RenderProfileEntry(const v1::Profile& profile, const Terminal& terminal);

// One paragraph about a calibration that ended.
std::string RenderCalibration(const v1::CalibrationComplete& complete);

}  // namespace ripplekv
