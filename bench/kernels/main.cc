// Speed of the kernels beside what the machine's memory and dot products can do at the same moment.
//
//   ripplekv-kernels-bench --limits [--threads N]     the machine's limits only, as one JSON object
//   ripplekv-kernels-bench [--threads N] [--shapes HIDDEN,FFN,LAYERS,VOCAB,HEADS,KV_HEADS,HEAD_DIM]
//                          [--benchmark_filter=REGEX] [--benchmark_repetitions=N] ...
//
// One line a kernel and instruction set. GB/s counts what has to be read and written at least once,
// GFLOP/s multiplications and additions; of_limit is the share of the limit that the line's label
// names, measured just before and after.
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "bench/kernels/bench.h"
#include "bench/kernels/limits.h"
#include "kernels/decode_attention.h"
#include "kernels/isa.h"
#include "kernels/thread_pool.h"

namespace ripplekv {
namespace {

/// False unless `text` is whole positive numbers, as many as `numbers` holds.
bool ParseNumbers(const char* text, std::vector<int64_t>* numbers) {
  for (size_t i = 0; i < numbers->size(); ++i) {
    if (!std::isdigit(static_cast<unsigned char>(*text))) return false;
    char* end = nullptr;
    (*numbers)[i] = std::strtoll(text, &end, 10);
    if ((*numbers)[i] < 1 || (*numbers)[i] > (1 << 24)) return false;
    const bool last = i + 1 == numbers->size();
    if (*end != (last ? '\0' : ',')) return false;
    text = end + 1;
  }
  return true;
}

constexpr Limit kLimits[] = {Limit::kMemory,  Limit::kL3,      Limit::kL2,
                             Limit::kBf16Dot, Limit::kInt8Dot, Limit::kFp32Fma};

bool ParseArguments(int argc, char** argv, int* threads, Shapes* s, bool* limits_only) {
  for (int i = 1; i < argc; i += 2) {
    if (std::strcmp(argv[i], "--limits") == 0) {
      *limits_only = true;
      --i;
      continue;
    }
    if (i + 1 == argc) return false;
    if (std::strcmp(argv[i], "--threads") == 0) {
      std::vector<int64_t> n(1);
      if (!ParseNumbers(argv[i + 1], &n) || n[0] > 1024) return false;
      *threads = static_cast<int>(n[0]);
    } else if (std::strcmp(argv[i], "--shapes") == 0) {
      std::vector<int64_t> n(7);
      if (!ParseNumbers(argv[i + 1], &n)) return false;
      *s = {n[0],
            n[1],
            n[2],
            n[3],
            static_cast<int>(n[4]),
            static_cast<int>(n[5]),
            static_cast<int>(n[6])};
    } else {
      return false;
    }
  }
  return s->hidden % 32 == 0 && s->ffn % 32 == 0 && s->heads % s->kv_heads == 0 &&
         s->head_dim % 2 == 0 && s->head_dim <= kDecodeAttentionMaxHeadDim &&
         int64_t{s->heads} * s->head_dim % 32 == 0;
}

void TellLimits(ThreadPool* pool) {
  benchmark::AddCustomContext("threads", std::to_string(pool->threads()));
  benchmark::AddCustomContext("instruction set", IsaName(BestIsa()));
  for (Limit limit : kLimits) {
    const double rate = MeasureLimit(limit, pool);
    char text[64];
    std::snprintf(text, sizeof text, "%.0f %s", rate, LimitUnit(limit));
    benchmark::AddCustomContext(std::string("limit of ") + LimitName(limit),
                                rate > 0 ? text : "not on this processor");
  }
}

/// In 1e9 bytes or operations a second; 0: not on this processor.
void PrintLimits(ThreadPool* pool) {
  std::printf("{\"threads\": %d", pool->threads());
  for (Limit limit : kLimits) {
    std::printf(", \"%s\": %.1f", LimitName(limit), MeasureLimit(limit, pool));
  }
  std::printf("}\n");
}

int Main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  BenchSetup setup;
  int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  bool limits_only = false;
  if (!ParseArguments(argc, argv, &threads, &setup.shapes, &limits_only)) {
    std::fprintf(
        stderr,
        "usage: %s [--limits] [--threads N] [--shapes HIDDEN,FFN,LAYERS,VOCAB,HEADS,KV_HEADS,"
        "HEAD_DIM] [--benchmark_filter=REGEX] ...\n"
        "Widths are multiples of 32, HEADS one of KV_HEADS, HEAD_DIM even and at most %d.\n",
        argv[0], kDecodeAttentionMaxHeadDim);
    return 2;
  }
  ThreadPool pool(threads);
  setup.pool = &pool;
  if (limits_only) {
    PrintLimits(&pool);
    return 0;
  }
  TellLimits(&pool);
  AddLinearBenches(setup);
  AddDecodeAttentionBenches(setup);
  AddPrefillAttentionBenches(setup);
  AddPrefillLinearBenches(setup);
  AddRestBenches(setup);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace
}  // namespace ripplekv

int main(int argc, char** argv) { return ripplekv::Main(argc, argv); }
