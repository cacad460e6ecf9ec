#include "bench/kernels/bench.h"

#include <algorithm>
#include <random>

#include "kernels/bf16.h"

namespace ripplekv {

void ReportRates(benchmark::State& state, Work work, Limit limit, double seconds,
                 double limit_before, ThreadPool* pool) {
  const double runs = static_cast<double>(state.iterations());
  const double gflops = work.flops * runs / seconds * 1e-9;
  const double gbytes = work.bytes * runs / seconds * 1e-9;
  if (work.flops > 0) state.counters["GFLOP/s"] = gflops;
  if (work.bytes > 0) state.counters["GB/s"] = gbytes;
  const double most = std::max(limit_before, MeasureLimit(limit, pool));
  if (most > 0) {
    state.counters["of_limit"] = (IsCompute(limit) ? gflops : gbytes) / most;
    state.SetLabel(LimitName(limit));
  }
}

std::vector<Isa> SupportedIsas() {
  std::vector<Isa> found;
  for (Isa isa : kIsas) {
    if (IsaSupported(isa)) found.push_back(isa);
  }
  return found;
}

std::vector<float> RandomFloats(size_t n) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

std::vector<uint16_t> RandomBf16(size_t n) {
  const std::vector<float> noise = RandomFloats(4096);
  std::vector<uint16_t> x(n);
  for (size_t i = 0; i < n; ++i) x[i] = FloatToBf16(noise[i % noise.size()]);
  return x;
}

}  // namespace ripplekv
