#pragma once

#include <cstdint>

namespace ripplekv {

/// Instruction sets the hot kernels are compiled for. Every kernel computes in 16 lanes whatever
/// the width of the machine's registers, so kV3 and kV4 give the same bits; kBase has no fused
/// multiply-add and differs in rounding. Kernels with a file of their own for kV4Dot say what they
/// compute there; the others run as for kV4.
enum class Isa : uint8_t {
  kBase,   // x86-64
  kV3,     // x86-64-v3: AVX2, FMA, F16C
  kV4,     // x86-64-v4: AVX-512 F, BW, CD, DQ, VL
  kV4Dot,  // and AVX512-VNNI and AVX512-BF16, the dot products of bytes and of bf16
};

inline constexpr Isa kIsas[] = {Isa::kBase, Isa::kV3, Isa::kV4, Isa::kV4Dot};

constexpr const char* IsaName(Isa isa) {
  return isa == Isa::kBase ? "x86-64"
         : isa == Isa::kV3 ? "x86-64-v3"
         : isa == Isa::kV4 ? "x86-64-v4"
                           : "x86-64-v4 with VNNI and BF16";
}

/// Whether this processor and operating system run it.
bool IsaSupported(Isa isa);

/// The widest supported one. Kernels take it as their default; tests name another.
Isa BestIsa();

}  // namespace ripplekv
