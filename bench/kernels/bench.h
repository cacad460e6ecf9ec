// What the kernels' benchmarks share.
#pragma once

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/kernels/limits.h"
#include "kernels/isa.h"
#include "kernels/thread_pool.h"

namespace ripplekv {

/// Of the model whose layers are imitated: SmolLM2-135M unless the command line says otherwise.
struct Shapes {
  int64_t hidden = 576, ffn = 1536, layers = 30, vocab = 49152;
  int heads = 9, kv_heads = 3, head_dim = 64;
};

struct BenchSetup {
  Shapes shapes;
  ThreadPool* pool = nullptr;
};

/// What one run of a benchmark's body does: multiplications and additions, and bytes that it has to
/// read and write at least once. 0: not worth telling.
struct Work {
  double flops = 0;
  double bytes = 0;
};

/// Sets the counters GFLOP/s, GB/s and of_limit, the share of what `limit` was just before and
/// after (the larger one: the machine's own speed drifts).
void ReportRates(benchmark::State& state, Work work, Limit limit, double seconds,
                 double limit_before, ThreadPool* pool);

/// Runs body() as often as `state` asks, between two measurements of the limit.
template <typename F>
void MeasureAgainst(benchmark::State& state, Limit limit, Work work, ThreadPool* pool,
                    const F& body) {
  const double before = MeasureLimit(limit, pool);
  body();  // what is made on the first use
  const auto start = std::chrono::steady_clock::now();
  for (auto _ : state) body();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  ReportRates(state, work, limit, seconds.count(), before, pool);
}

/// A benchmark in wall time.
template <typename F>
void AddBench(const std::string& name, F function) {
  benchmark::RegisterBenchmark(name.c_str(), function)
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
}

/// Every instruction set that this processor has.
std::vector<Isa> SupportedIsas();

/// The same normally distributed numbers for the same n.
std::vector<float> RandomFloats(size_t n);
/// `n` numbers of those, repeated where n is large, in bf16.
std::vector<uint16_t> RandomBf16(size_t n);

// One a file.
void AddLinearBenches(const BenchSetup& setup);
void AddDecodeAttentionBenches(const BenchSetup& setup);
void AddPrefillAttentionBenches(const BenchSetup& setup);
void AddPrefillLinearBenches(const BenchSetup& setup);
void AddRestBenches(const BenchSetup& setup);

}  // namespace ripplekv
