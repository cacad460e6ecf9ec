#pragma once

#include "kernels/thread_pool.h"

namespace ripplekv {

/// What a kernel cannot be faster than on this machine.
enum class Limit {
  kNone,
  kMemory,   // reading memory that is in no cache
  kL3,       // reading 8 MiB again and again
  kL2,       // reading 512 KiB a thread again and again
  kBf16Dot,  // dot products of bf16 pairs on registers (AVX512-BF16)
  kInt8Dot,  // dot products of four bytes on registers (AVX512-VNNI)
  kFp32Fma,  // multiplications and additions of fp32 on registers (AVX2's)
};

/// Of products of bf16: those of the instruction for them, or of fp32 where there is none.
Limit Bf16Limit();

/// "memory", "bf16 dot", ...
const char* LimitName(Limit limit);
/// Whether it is one of operations, not of bytes.
bool IsCompute(Limit limit);
/// "GB/s", or "GFLOP/s" of multiplications and additions.
const char* LimitUnit(Limit limit);

/// Measured now, by all threads of the pool, in 1e9 bytes or operations a second: the best of a few
/// passes, some ten milliseconds in all. 0: this processor does not have the instruction, or kNone.
double MeasureLimit(Limit limit, ThreadPool* pool);

}  // namespace ripplekv
