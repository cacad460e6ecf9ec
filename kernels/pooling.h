#pragma once

#include <cstdint>

namespace ripplekv {

/// How selectors smooth scores along the positions.
enum class Pooling : uint8_t { kNone, kMax, kMean };

}  // namespace ripplekv
