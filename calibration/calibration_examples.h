#pragma once

#include <cstdint>
#include <vector>

namespace ripplekv {

/// Token ids of what one calibration measures.
struct CalibrationExamples {
  std::vector<std::vector<int32_t>> layers;  // what one layer's rows do to the output (Probe)
  std::vector<std::vector<int32_t>> sizes;   // what compressing every layer does (SizeProbe)
};

}  // namespace ripplekv
