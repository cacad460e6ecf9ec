#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/host_device.h"

namespace ripplekv {

/// bf16 is the upper half of an fp32 number.
RIPPLEKV_HOST_DEVICE inline float Bf16ToFloat(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

/// Rounds to nearest, ties to even. Overflow gives infinity; a NaN stays a (quiet) NaN of the same
/// sign.
RIPPLEKV_HOST_DEVICE inline uint16_t FloatToBf16(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace ripplekv
