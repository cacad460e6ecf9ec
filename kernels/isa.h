#pragma once

#include <cstdint>

namespace ripplekv {

/// Instruction sets the hot kernels are compiled for. Every kernel computes in 16 lanes whatever
/// the width of the machine's registers, so kV3 and kV4 give the same bits; kBase has no fused
/// multiply-add and differs in rounding.
enum class Isa : uint8_t {
  kBase,  // x86-64
  kV3,    // x86-64-v3: AVX2, FMA, F16C
  kV4,    // x86-64-v4: AVX-512 F, BW, CD, DQ, VL
};

inline constexpr Isa kIsas[] = {Isa::kBase, Isa::kV3, Isa::kV4};

constexpr const char* IsaName(Isa isa) {
  return isa == Isa::kBase ? "x86-64" : isa == Isa::kV3 ? "x86-64-v3" : "x86-64-v4";
}

/// Whether this processor and operating system run it.
bool IsaSupported(Isa isa);

/// The widest supported one. Kernels take it as their default; tests name another.
Isa BestIsa();

}  // namespace ripplekv
