#include "kernels/isa.h"

namespace ripplekv {

bool IsaSupported(Isa isa) {
  // __builtin_cpu_supports also asks whether the operating system saves the registers.
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi") &&
                  __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("lzcnt") &&
                  __builtin_cpu_supports("movbe");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  switch (isa) {
    case Isa::kBase:
      return true;
    case Isa::kV3:
      return v3;
    case Isa::kV4:
      return v4;
    case Isa::kV4Dot:
      return v4 && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
  }
  return false;
}

Isa BestIsa() {
  static const Isa best = IsaSupported(Isa::kV4Dot) ? Isa::kV4Dot
                          : IsaSupported(Isa::kV4)  ? Isa::kV4
                          : IsaSupported(Isa::kV3)  ? Isa::kV3
                                                    : Isa::kBase;
  return best;
}

}  // namespace ripplekv
