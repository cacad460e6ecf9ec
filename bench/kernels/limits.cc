#include "bench/kernels/limits.h"

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "bench/kernels/large_pages.h"
#include "kernels/isa.h"

namespace ripplekv {
namespace {

template <typename F>
double BestSeconds(int passes, const F& body) {
  double best = 1e30;
  for (int i = 0; i < passes; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

// n is a multiple of 64. Prefetching beyond what the processor does by itself reads faster from
// memory and no slower from a cache.
__attribute__((target("avx512f"))) uint64_t ReadWide(const uint64_t* data, int64_t n) {
  constexpr int64_t kAhead = 1024;
  __m512i sums[8] = {};
  for (int64_t i = 0; i < n; i += 64) {
    for (int j = 0; j < 8; ++j) {
      _mm_prefetch(reinterpret_cast<const char*>(data + i + 8 * j + kAhead), _MM_HINT_T0);
      sums[j] = _mm512_add_epi64(sums[j], _mm512_loadu_si512(data + i + 8 * j));
    }
  }
  uint64_t lanes[8];
  for (int j = 1; j < 8; ++j) sums[0] = _mm512_add_epi64(sums[0], sums[j]);
  _mm512_storeu_si512(lanes, sums[0]);
  return lanes[0] + lanes[1] + lanes[2] + lanes[3] + lanes[4] + lanes[5] + lanes[6] + lanes[7];
}

uint64_t ReadPlain(const uint64_t* data, int64_t n) {
  uint64_t sums[8] = {};
  for (int64_t i = 0; i < n; i += 8) {
    for (int64_t j = 0; j < 8; ++j) sums[j] += data[i + j];
  }
  uint64_t sum = 0;
  for (uint64_t s : sums) sum += s;
  return sum;
}

double ReadRate(ThreadPool* pool, size_t bytes, int times, int passes) {
  static const LargePages memory(size_t{256} << 20);
  static const uint64_t* const data = [] {
    std::fill_n(memory.data(), memory.size(), std::byte{1});
    return reinterpret_cast<const uint64_t*>(memory.data());
  }();
  const bool wide = IsaSupported(Isa::kV4);
  const int64_t n = static_cast<int64_t>(bytes / 8);
  // Every thread reads the same part each time, so that a small part stays in its own cache.
  const int64_t part = n / pool->threads() / 64 * 64;
  std::atomic<uint64_t> total = 0;
  const double seconds = BestSeconds(passes, [&] {
    pool->ParallelFor(pool->threads(), 1, [&](int64_t begin, int64_t end) {
      uint64_t sum = 0;
      for (int64_t p = begin; p < end; ++p) {
        for (int t = 0; t < times; ++t) {
          const uint64_t* const from = data + p * part;
          sum += wide ? ReadWide(from, part) : ReadPlain(from, part);
        }
      }
      total += sum;
    });
  });
  return static_cast<double>(part * pool->threads() * 8 * times) / seconds * 1e-9;
}

// Chains that do not wait for each other, enough to hide an instruction's latency.
#define RIPPLEKV_CHAINS(X)                                                                        \
  X(0)                                                                                            \
  X(1)                                                                                            \
  X(2)                                                                                            \
  X(3)                                                                                            \
  X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16) X(17) X(18) X(19) X(20) \
      X(21) X(22) X(23)
constexpr double kChains = 24;

#define RIPPLEKV_PEAK(name, instruction)                                  \
  __attribute__((target("avx512f"))) void name(int64_t rounds) {          \
    const __m512i x = _mm512_setzero_si512(), y = _mm512_setzero_si512(); \
    RIPPLEKV_CHAINS(RIPPLEKV_DECLARE)                                     \
    for (int64_t i = 0; i < rounds; ++i) {                                \
      RIPPLEKV_CHAINS(instruction)                                        \
    }                                                                     \
  }
#define RIPPLEKV_DECLARE(i) __m512i a##i = _mm512_setzero_si512();
#define RIPPLEKV_BF16(i) asm volatile("vdpbf16ps %1, %2, %0" : "+v"(a##i) : "v"(x), "v"(y));
#define RIPPLEKV_INT8(i) asm volatile("vpdpbusd %1, %2, %0" : "+v"(a##i) : "v"(x), "v"(y));
RIPPLEKV_PEAK(PeakBf16, RIPPLEKV_BF16)
RIPPLEKV_PEAK(PeakInt8, RIPPLEKV_INT8)

__attribute__((target("avx2,fma"))) void PeakFp32(int64_t rounds) {
  const __m256 x = _mm256_setzero_ps(), y = _mm256_setzero_ps();
#define RIPPLEKV_DECLARE_HALF(i) __m256 a##i = _mm256_setzero_ps();
#define RIPPLEKV_FMA(i) asm volatile("vfmadd231ps %1, %2, %0" : "+x"(a##i) : "x"(x), "x"(y));
#define RIPPLEKV_FEW_CHAINS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
  RIPPLEKV_FEW_CHAINS(RIPPLEKV_DECLARE_HALF)
  for (int64_t i = 0; i < rounds; ++i) {
    RIPPLEKV_FEW_CHAINS(RIPPLEKV_FMA)
    RIPPLEKV_FEW_CHAINS(RIPPLEKV_FMA)
  }
}

double PeakRate(ThreadPool* pool, Isa needed, void (*peak)(int64_t), double operations) {
  if (!IsaSupported(needed)) return 0;
  constexpr int64_t kRounds = 100000;
  const double seconds = BestSeconds(5, [&] {
    pool->ParallelFor(pool->threads(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) peak(kRounds);
    });
  });
  return kRounds * kChains * operations * pool->threads() / seconds * 1e-9;
}

}  // namespace

const char* LimitName(Limit limit) {
  switch (limit) {
    case Limit::kMemory:
      return "memory";
    case Limit::kL3:
      return "L3";
    case Limit::kL2:
      return "L2";
    case Limit::kBf16Dot:
      return "bf16 dot";
    case Limit::kInt8Dot:
      return "int8 dot";
    case Limit::kFp32Fma:
      return "fp32 fma";
    case Limit::kNone:
      break;
  }
  return "none";
}

Limit Bf16Limit() { return IsaSupported(Isa::kV4Dot) ? Limit::kBf16Dot : Limit::kFp32Fma; }

bool IsCompute(Limit limit) {
  return limit == Limit::kBf16Dot || limit == Limit::kInt8Dot || limit == Limit::kFp32Fma;
}

const char* LimitUnit(Limit limit) { return IsCompute(limit) ? "GFLOP/s" : "GB/s"; }

double MeasureLimit(Limit limit, ThreadPool* pool) {
  switch (limit) {
    case Limit::kMemory:
      return ReadRate(pool, size_t{256} << 20, 1, 4);
    case Limit::kL3:
      return ReadRate(pool, size_t{8} << 20, 4, 9);
    case Limit::kL2:
      return ReadRate(pool, static_cast<size_t>(pool->threads()) << 19, 32, 9);
    case Limit::kBf16Dot:  // 16 lanes of two multiplications and additions
      return PeakRate(pool, Isa::kV4Dot, PeakBf16, 64);
    case Limit::kInt8Dot:
      return PeakRate(pool, Isa::kV4Dot, PeakInt8, 128);
    case Limit::kFp32Fma:  // 8 lanes
      return PeakRate(pool, Isa::kV3, PeakFp32, 16);
    case Limit::kNone:
      break;
  }
  return 0;
}

}  // namespace ripplekv
