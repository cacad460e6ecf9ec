#pragma once

#include <cstdint>

namespace ripplekv {

/// How SnapKV smooths scores along the positions.
enum class Pooling : uint8_t { kNone, kMax, kMean };

}  // namespace ripplekv
