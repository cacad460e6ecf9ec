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
};

/// "memory", "bf16 dot", ...
const char* LimitName(Limit limit);
/// "GB/s", or "GFLOP/s" of multiplications and additions.
const char* LimitUnit(Limit limit);

/// Measured now, by all threads of the pool, in 1e9 bytes or operations a second: the best of a few
/// passes, some ten milliseconds in all. 0: this processor does not have the instruction, or kNone.
double MeasureLimit(Limit limit, ThreadPool* pool);

}  // namespace ripplekv
