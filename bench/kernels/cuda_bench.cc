// Speed of the CUDA kernels beside a copy within the GPU's memory at the same moment.
//
//   ripplekv-cuda-bench [--benchmark_filter=REGEX] [--benchmark_repetitions=N] ...
//
// Times are of the GPU, per call: a graph of calls over different data, together several times what
// its L2 cache holds, is replayed. GB/s counts what has to be read and written at least once;
// of_copy is its share of the copy's bytes read and written.
#include <benchmark/benchmark.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/cuda_status.h"
#include "kernels/decode_attention_cuda.h"
#include "kernels/gather_rows_cuda.h"
#include "kernels/value_perturbation_cuda.h"

namespace ripplekv {
namespace {

constexpr size_t kPageBytes = 65536;

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}
void Check(cudaError_t error, const char* what) { Check(CudaStatus(error, what)); }

/// Memory of the GPU, with what a vector holds or with random numbers.
class Buffer {
 public:
  explicit Buffer(size_t bytes) { Check(cudaMalloc(&p_, std::max<size_t>(bytes, 1)), "allocate"); }
  template <typename T>
  explicit Buffer(const std::vector<T>& host) : Buffer(host.size() * sizeof(T)) {
    Check(cudaMemcpy(p_, host.data(), host.size() * sizeof(T), cudaMemcpyDefault), "copy");
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { cudaFree(p_); }
  template <typename T = std::byte>
  T* get() const {
    return static_cast<T*>(p_);
  }

 private:
  void* p_ = nullptr;
};

/// A buffer of normally distributed numbers, the same 64 KiB again and again.
class RandomRows : public Buffer {
 public:
  RandomRows(KvType type, size_t bytes) : Buffer(bytes) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<std::byte> stretch(std::min<size_t>(bytes, 65536));
    const size_t element = KvTypeBytes(type);
    for (size_t i = 0; i + element <= stretch.size(); i += element) {
      const float f = normal(random);
      const uint16_t h = FloatToBf16(f);
      std::memcpy(&stretch[i], type == KvType::kF32 ? static_cast<const void*>(&f) : &h, element);
    }
    Check(cudaMemcpy(get(), stretch.data(), stretch.size(), cudaMemcpyDefault), "copy");
    for (size_t done = stretch.size(); done < bytes;) {
      const size_t more = std::min(done, bytes - done);
      Check(cudaMemcpy(get() + done, get(), more, cudaMemcpyDefault), "copy");
      done += more;
    }
  }
};

class Gpu {
 public:
  Gpu() {
    Check(cudaGetDevice(&device_), "find the GPU");
    int l2 = 0;
    Check(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, device_), "ask the GPU");
    cold_bytes_ = std::max<size_t>(4 * static_cast<size_t>(l2), size_t{256} << 20);
    Check(cudaStreamCreate(&stream_), "create a stream");
    Check(cudaEventCreate(&start_), "create an event");
    Check(cudaEventCreate(&stop_), "create an event");
  }
  cudaStream_t stream() const { return stream_; }

  /// How many sets of `bytes` no cache holds.
  int Sets(double bytes) const {
    return static_cast<int>(std::max(2.0, static_cast<double>(cold_bytes_) / bytes + 1));
  }

  /// Bytes read and written per second by a copy that no cache holds.
  double CopyRate() const {
    const size_t bytes = cold_bytes_;
    const Buffer from(bytes), to(bytes);
    double best = 1e30;
    for (int i = 0; i < 5; ++i) {
      best = std::min(
          best, Seconds([&] {
            Check(cudaMemcpyAsync(to.get(), from.get(), bytes, cudaMemcpyDeviceToDevice, stream_),
                  "copy");
          }));
    }
    return 2 * static_cast<double>(bytes) / best;
  }

  /// Measures call(set) for set 0 ... sets - 1, each of which moves `bytes`.
  template <typename F>
  void Measure(benchmark::State& state, int sets, double bytes, const F& call) const {
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    Check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), "capture");
    for (int i = 0; i < sets; ++i) Check(call(i));
    Check(cudaStreamEndCapture(stream_, &graph), "capture");
    Check(cudaGraphInstantiate(&replay, graph, 0), "make a graph");
    const auto once = [&] { Check(cudaGraphLaunch(replay, stream_), "replay"); };
    Seconds(once);
    const double copy_before = CopyRate();
    double total = 0;
    for (auto _ : state) {
      const double seconds = Seconds(once) / sets;
      total += seconds;
      state.SetIterationTime(seconds);
    }
    const double rate = bytes * static_cast<double>(state.iterations()) / total;
    state.counters["GB/s"] = rate * 1e-9;
    state.counters["of_copy"] = rate / std::max(copy_before, CopyRate());
    cudaGraphExecDestroy(replay);
    cudaGraphDestroy(graph);
  }

 private:
  template <typename F>
  double Seconds(const F& work) const {
    Check(cudaEventRecord(start_, stream_), "time");
    work();
    Check(cudaEventRecord(stop_, stream_), "time");
    Check(cudaEventSynchronize(stop_), "run");
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, start_, stop_), "time");
    return milliseconds * 1e-3;
  }

  int device_ = 0;
  size_t cold_bytes_ = 0;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
};

struct Heads {
  int heads, kv_heads, d;
  std::string Name() const {
    return std::to_string(heads) + "/" + std::to_string(kv_heads) + "x" + std::to_string(d);
  }
};

/// Pages anywhere in an arena: [sets * pages of a set].
std::vector<std::byte*> ShuffledPages(const Buffer& arena, size_t pages) {
  std::vector<std::byte*> list(pages);
  for (size_t i = 0; i < pages; ++i) list[i] = arena.get() + i * kPageBytes;
  std::shuffle(list.begin(), list.end(), std::mt19937(3));
  return list;
}

void BenchDecode(benchmark::State& state, const Gpu& gpu, const Heads& h, KvType type,
                 int sequences, int64_t rows, bool mass) {
  DecodeAttentionArgs args;
  args.layout = KvPageLayout::For(type, KvType::kBf16, h.kv_heads, h.d, kPageBytes);
  args.heads = h.heads;
  args.sequences = sequences;
  const double bytes = 2.0 * sequences * static_cast<double>(rows) * h.kv_heads *
                       static_cast<double>(KvRowBytes(type, h.d) + KvParamBytes(type, h.d));
  const int sets = gpu.Sets(bytes);
  const size_t pages = static_cast<size_t>(args.layout.PagesFor(rows));
  const size_t n = static_cast<size_t>(sequences), all = pages * n * static_cast<size_t>(sets);
  const RandomRows arena(type, all * kPageBytes);
  const Buffer list(ShuffledPages(arena, all));
  const Buffer masses(n * static_cast<size_t>(h.kv_heads * rows) * sizeof(float));
  std::vector<PagedSequence> table(n * static_cast<size_t>(sets));
  for (size_t i = 0; i < table.size(); ++i) {
    table[i].pages = list.get<const std::byte*>() + i * pages;
    table[i].rows = rows;
    if (mass) table[i].mass = masses.get<float>() + i % n * static_cast<size_t>(h.kv_heads * rows);
    table[i].mass_stride = rows;
  }
  const Buffer tables(table);
  const size_t floats = n * static_cast<size_t>(h.heads * h.d);
  const RandomRows q(KvType::kF32, floats * sizeof(float));
  const Buffer out(floats * sizeof(float));
  const DecodeAttentionBounds bounds = {rows, mass};
  const Buffer workspace(DecodeAttentionCudaWorkspaceFloats(args, bounds) * sizeof(float));
  args.q = q.get<float>();
  args.out = out.get<float>();
  args.workspace = workspace.get<float>();
  gpu.Measure(state, sets, bytes, [&](int set) {
    args.sequence = tables.get<PagedSequence>() + static_cast<size_t>(set) * n;
    return DecodeAttentionCuda(args, bounds, gpu.stream());
  });
}

void BenchGather(benchmark::State& state, const Gpu& gpu, const Heads& h, int64_t rows,
                 int64_t kept) {
  GatherRowsArgs args;
  args.layout = KvPageLayout::For(KvType::kBf16, h.kv_heads, h.d, kPageBytes);
  args.kv_head_stride = rows * h.d;
  args.indices_stride = kept;
  const double bytes = 2.0 * 2.0 * static_cast<double>(kept) * h.kv_heads * h.d * 2;
  const int sets = gpu.Sets(bytes);
  const size_t source = static_cast<size_t>(h.kv_heads * rows * h.d) * 2;
  const size_t pages = static_cast<size_t>(args.layout.PagesFor(kept));
  const RandomRows k(KvType::kBf16, source * static_cast<size_t>(sets));
  const RandomRows v(KvType::kBf16, source * static_cast<size_t>(sets));
  const Buffer arena(pages * static_cast<size_t>(sets) * kPageBytes);
  const Buffer list(ShuffledPages(arena, pages * static_cast<size_t>(sets)));
  std::vector<int32_t> every(static_cast<size_t>(rows));
  std::iota(every.begin(), every.end(), 0);
  std::vector<int32_t> chosen;
  std::mt19937 random(4);
  for (int head = 0; head < h.kv_heads; ++head) {
    std::sample(every.begin(), every.end(), std::back_inserter(chosen), kept, random);
  }
  const Buffer indices(chosen);
  args.indices = indices.get<int32_t>();
  gpu.Measure(state, sets, bytes, [&](int set) {
    const size_t at = static_cast<size_t>(set);
    args.k = k.get() + at * source;
    args.v = v.get() + at * source;
    args.pages = list.get<std::byte*>() + at * pages;
    return GatherRowsCuda(args, 0, kept, gpu.stream());
  });
}

void BenchPerturb(benchmark::State& state, const Gpu& gpu, const Heads& h, int64_t rows) {
  PerturbArgs args;
  args.type = KvType::kBf16;
  args.kv_heads = h.kv_heads;
  args.head_dim = h.d;
  args.kv_head_stride = rows * h.d;
  args.last_row = rows;
  args.eta = 0.5f;
  const size_t bytes = static_cast<size_t>(h.kv_heads * rows * h.d) * 2;
  const int sets = gpu.Sets(2.0 * static_cast<double>(bytes));
  const RandomRows from(KvType::kBf16, bytes * static_cast<size_t>(sets));
  const Buffer to(bytes * static_cast<size_t>(sets));
  gpu.Measure(state, sets, 2.0 * static_cast<double>(bytes), [&](int set) {
    args.source = from.get() + static_cast<size_t>(set) * bytes;
    args.destination = to.get() + static_cast<size_t>(set) * bytes;
    return PerturbValuesCuda(args, 0, rows, gpu.stream());
  });
}

template <typename F>
void Add(const std::string& name, const F& body) {
  benchmark::RegisterBenchmark(name.c_str(), body)
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond)
      ->MinTime(0.05);
}

void AddBenches(const Gpu& gpu) {
  for (const Heads& h : {Heads{9, 3, 64}, Heads{32, 8, 128}}) {
    for (KvType type : kKvTypes) {
      for (int sequences : {1, 8, 64}) {
        for (int64_t rows : {800, 8192}) {
          Add("decode_attention/" + std::string(KvTypeName(type)) + "/heads:" + h.Name() +
                  "/sequences:" + std::to_string(sequences) + "/rows:" + std::to_string(rows),
              [=, &gpu](benchmark::State& state) {
                BenchDecode(state, gpu, h, type, sequences, rows, false);
              });
        }
      }
    }
    Add("decode_attention/with_mass/bf16/heads:" + h.Name() + "/sequences:8/rows:8192",
        [=, &gpu](benchmark::State& state) {
          BenchDecode(state, gpu, h, KvType::kBf16, 8, 8192, true);
        });
    for (int64_t kept : {819, 4096}) {
      Add("gather_rows/bf16/heads:" + h.Name() + "/rows:8192/kept:" + std::to_string(kept),
          [=, &gpu](benchmark::State& state) { BenchGather(state, gpu, h, 8192, kept); });
    }
    Add("value_perturbation/bf16/heads:" + h.Name() + "/rows:8192",
        [=, &gpu](benchmark::State& state) { BenchPerturb(state, gpu, h, 8192); });
  }
}

int Main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  int count = 0;
  if (absl::Status status = CudaStatus(cudaGetDeviceCount(&count), "count GPUs");
      !status.ok() || count < 1) {
    std::fprintf(stderr, "no usable GPU: %s\n", status.ToString().c_str());
    return 1;
  }
  const Gpu gpu;
  cudaDeviceProp properties;
  int driver = 0;
  Check(cudaGetDeviceProperties(&properties, 0), "ask the GPU");
  Check(cudaDriverGetVersion(&driver), "ask the driver");
  char copy[64];
  std::snprintf(copy, sizeof copy, "%.0f GB/s", gpu.CopyRate() * 1e-9);
  benchmark::AddCustomContext("GPU", properties.name);
  benchmark::AddCustomContext("CUDA of the driver", std::to_string(driver));
  benchmark::AddCustomContext("copy, read and written", copy);
  AddBenches(gpu);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace
}  // namespace ripplekv

int main(int argc, char** argv) { return ripplekv::Main(argc, argv); }
