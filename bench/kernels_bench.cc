// Speed of the kernels on this machine, beside the memory bandwidth it has at the same moment.
//
//   ripplekv-kernels-bench [threads] [hidden ffn layers vocab heads kv_heads head_dim]
//
// The shapes default to SmolLM2-135M: Q4_1 layers and a Q8_0 head. Times are the median of several
// repetitions.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/decode_attention.h"
#include "kernels/isa.h"
#include "kernels/kl_divergence.h"
#include "kernels/packed_linear.h"
#include "kernels/packed_matrix.h"
#include "kernels/prefill_attention.h"
#include "kernels/rms_norm.h"
#include "kernels/swiglu.h"
#include "kernels/thread_pool.h"
#include "kernels/value_perturbation.h"
#include "kernels/window_scores.h"

namespace ripplekv {
namespace {

struct Shapes {
  int64_t hidden = 576, ffn = 1536, layers = 30, vocab = 49152;
  int heads = 9, kv_heads = 3, head_dim = 64;
};

double MedianSeconds(int repetitions, const std::function<void()>& body) {
  std::vector<double> seconds;
  for (int i = 0; i < repetitions; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

std::vector<float> RandomFloats(size_t n) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

/// Random quants with the scale 0.01.
class Matrix {
 public:
  Matrix(TensorType type, int64_t rows, int64_t cols)
      : bytes_(static_cast<size_t>(row_bytes(type, cols) * rows)) {
    std::mt19937 random(2);
    for (std::byte& b : bytes_) b = static_cast<std::byte>(random());
    const uint16_t scale = 0x211f;
    const size_t block = static_cast<size_t>(block_bytes(type));
    for (size_t b = 0; b < bytes_.size(); b += block) {
      std::memcpy(&bytes_[b], &scale, 2);
      if (type == TensorType::kQ4_1) std::memcpy(&bytes_[b + 2], &scale, 2);
    }
    view_ = {type, rows, cols, bytes_.data(), row_bytes(type, cols)};
  }
  const PackedMatrix& view() const { return view_; }
  double bytes() const { return static_cast<double>(bytes_.size()); }
  double flops() const { return 2.0 * static_cast<double>(view_.rows * view_.cols); }

 private:
  std::vector<std::byte> bytes_;
  PackedMatrix view_;
};

void Print(const std::string& what, double seconds, double flops, double bytes) {
  std::printf("%-46s %9.3f ms", what.c_str(), seconds * 1e3);
  if (flops > 0) std::printf(" %8.1f GFLOP/s", flops / seconds * 1e-9);
  if (bytes > 0) std::printf(" %7.1f GB/s", bytes / seconds * 1e-9);
  std::printf("\n");
  std::fflush(stdout);
}

void BenchBandwidth(ThreadPool* pool, const char* what, size_t bytes) {
  std::vector<uint64_t> data(bytes / 8, 1);
  volatile uint64_t sink = 0;
  const double seconds = MedianSeconds(9, [&] {
    std::atomic<uint64_t> total = 0;
    pool->ParallelFor(static_cast<int64_t>(data.size()), 1 << 15, [&](int64_t begin, int64_t end) {
      uint64_t sums[8] = {};
      int64_t i = begin;
      for (; i + 8 <= end; i += 8) {
        for (int j = 0; j < 8; ++j) sums[j] += data[static_cast<size_t>(i + j)];
      }
      uint64_t sum = 0;
      for (uint64_t s : sums) sum += s;
      total += sum;
    });
    sink = total;
  });
  Print(std::string("read ") + what, seconds, 0, static_cast<double>(bytes));
}

void BenchRegion(ThreadPool* pool) {
  const int regions = 2000;
  const double seconds = MedianSeconds(9, [&] {
    for (int i = 0; i < regions; ++i) {
      pool->ParallelFor(64, 1, [](int64_t, int64_t) {});
    }
  });
  std::printf("%-46s %9.3f us\n", "region of 64 empty ranges", seconds / regions * 1e6);
}

void BenchLinears(ThreadPool* pool, const Shapes& s, Isa isa) {
  // Every layer has its own weights, so that caches see what they see in a decode step.
  std::vector<std::unique_ptr<Matrix>> layers;
  const int64_t q = int64_t{s.heads} * s.head_dim, kv = int64_t{s.kv_heads} * s.head_dim;
  for (int64_t l = 0; l < s.layers; ++l) {
    for (auto [rows, cols] : {std::pair{q, s.hidden},
                              {kv, s.hidden},
                              {kv, s.hidden},
                              {s.hidden, q},
                              {s.ffn, s.hidden},
                              {s.ffn, s.hidden},
                              {s.hidden, s.ffn}}) {
      layers.push_back(std::make_unique<Matrix>(TensorType::kQ4_1, rows, cols));
    }
  }
  const Matrix head(TensorType::kQ8_0, s.vocab, s.hidden);
  double layer_flops = 0, layer_bytes = 0;
  for (const auto& m : layers) {
    layer_flops += m->flops();
    layer_bytes += m->bytes();
  }
  const std::vector<float> x =
      RandomFloats(static_cast<size_t>(16 * std::max({s.ffn, s.hidden, q})));
  std::vector<float> y(static_cast<size_t>(16 * std::max(s.vocab, s.ffn)));
  const auto linear = [&](const Matrix& w, int m) {
    const int64_t rows = w.view().rows;
    pool->ParallelFor(rows, 32, [&](int64_t begin, int64_t end) {
      PackedLinear(w.view(), x.data(), w.view().cols, m, y.data(), rows, begin, end, isa);
    });
  };
  for (int m : {1, 2, 4, 8, 16}) {
    const double layers_seconds = MedianSeconds(7, [&] {
      for (const auto& w : layers) linear(*w, m);
    });
    const double head_seconds = MedianSeconds(7, [&] { linear(head, m); });
    const std::string rows = " at " + std::to_string(m) + " rows";
    Print("layers' linears" + rows, layers_seconds, layer_flops * m, layer_bytes);
    Print("head" + rows, head_seconds, head.flops() * m, head.bytes());
    Print("  together", layers_seconds + head_seconds, (layer_flops + head.flops()) * m,
          layer_bytes + head.bytes());
  }
  std::vector<uint16_t> expanded(static_cast<size_t>(s.ffn * s.hidden));
  const Matrix& gate = *layers[4];
  const double seconds = MedianSeconds(9, [&] {
    pool->ParallelFor(s.ffn, 64, [&](int64_t begin, int64_t end) {
      ExpandRowsBf16(gate.view(), begin, end, expanded.data() + begin * s.hidden, isa);
    });
  });
  Print("expand one FFN matrix to bf16", seconds, 0,
        gate.bytes() + static_cast<double>(expanded.size()) * 2);
}

void BenchAttention(ThreadPool* pool, const Shapes& s, Isa isa, int sequences, int64_t rows) {
  DecodeAttentionArgs args;
  args.layout = KvPageLayout::For(KvType::kBf16, s.kv_heads, s.head_dim, 16384);
  args.heads = s.heads;
  args.sequences = sequences;
  const int64_t pages = args.layout.PagesFor(rows);
  // Several layers' caches, so that none is still in the cache from the last repetition.
  const int layers = 8;
  std::vector<std::byte> arena(static_cast<size_t>(pages * sequences * layers) * 16384 + 64);
  const std::vector<float> noise = RandomFloats(4096);
  for (size_t i = 0; i + 1 < arena.size(); i += 2) {
    std::memcpy(&arena[i], reinterpret_cast<const std::byte*>(&noise[i / 2 % 4096]) + 2, 2);
  }
  std::byte* base = arena.data() + (64 - reinterpret_cast<uintptr_t>(arena.data()) % 64) % 64;
  std::vector<std::byte*> list(static_cast<size_t>(pages * sequences * layers));
  for (size_t i = 0; i < list.size(); ++i) list[i] = base + i * 16384;
  std::shuffle(list.begin(), list.end(), std::mt19937(3));
  const std::vector<float> q = RandomFloats(static_cast<size_t>(sequences * s.heads * s.head_dim));
  std::vector<float> out(q.size());
  args.q = q.data();
  args.out = out.data();
  std::vector<PagedSequence> table(static_cast<size_t>(sequences));
  args.sequence = table.data();
  for (PagedSequence& t : table) t.rows = rows;
  std::vector<float> workspace(DecodeAttentionWorkspaceFloats(args));
  args.workspace = workspace.data();
  const double seconds = MedianSeconds(9,
                                       [&] {
                                         for (int l = 0; l < layers; ++l) {
                                           for (int i = 0; i < sequences; ++i) {
                                             table[static_cast<size_t>(i)].pages =
                                                 list.data() + (l * sequences + i) * pages;
                                           }
                                           DecodeAttention(args, pool, isa);
                                         }
                                       }) /
                         layers;
  const double elements = static_cast<double>(rows) * sequences * s.head_dim;
  Print("decode attention, " + std::to_string(sequences) + " x " + std::to_string(rows) +
            " rows, bf16",
        seconds, 4 * elements * s.heads, 4 * elements * s.kv_heads);
}

/// One layer of a prompt's prefill in chunks of 256 tokens.
void BenchPrefillAttention(ThreadPool* pool, const Shapes& s, int64_t tokens) {
  const std::vector<float> noise = RandomFloats(4096);
  const auto random = [&](int64_t heads) {
    std::vector<uint16_t> x(static_cast<size_t>(tokens * heads * s.head_dim));
    for (size_t i = 0; i < x.size(); ++i) x[i] = FloatToBf16(noise[i % 4096]);
    return x;
  };
  const std::vector<uint16_t> q = random(s.heads), k = random(s.kv_heads), v = random(s.kv_heads);
  std::vector<uint16_t> out(q.size());
  PrefillAttentionArgs args;
  args.heads = s.heads;
  args.kv_heads = s.kv_heads;
  args.head_dim = s.head_dim;
  args.k = k.data();
  args.v = v.data();
  args.kv_head_stride = tokens * s.head_dim;
  const double seconds = MedianSeconds(5, [&] {
    for (int64_t begin = 0; begin < tokens; begin += 256) {
      args.queries = static_cast<int>(std::min<int64_t>(256, tokens - begin));
      args.cached = begin;
      args.q = q.data() + begin * s.heads * s.head_dim;
      args.out = out.data() + begin * s.heads * s.head_dim;
      PrefillAttention(args, pool);
    }
  });
  const double pairs = static_cast<double>(tokens) * static_cast<double>(tokens + 1) / 2;
  Print("prefill attention, " + std::to_string(tokens) + " tokens, bf16", seconds,
        4 * pairs * s.heads * s.head_dim, 0);
}

void BenchRest(ThreadPool* pool, const Shapes& s, Isa isa) {
  const int64_t rows = 2048;
  WindowScoresArgs args;
  args.type = KvType::kBf16;
  args.heads = s.heads;
  args.kv_heads = s.kv_heads;
  args.head_dim = s.head_dim;
  args.window = 32;
  args.rows = rows;
  args.kv_head_stride = rows * s.head_dim;
  const std::vector<uint16_t> q(static_cast<size_t>(32 * s.heads * s.head_dim), 0x3e80);
  const std::vector<uint16_t> k(static_cast<size_t>(s.kv_heads * args.kv_head_stride), 0x3e80);
  std::vector<float> scores(static_cast<size_t>(s.heads * rows));
  args.q = q.data();
  args.k = k.data();
  args.scores = scores.data();
  const double window_seconds = MedianSeconds(9, [&] {
    pool->ParallelFor(s.heads, 1, [&](int64_t begin, int64_t end) {
      WindowScores(args, static_cast<int>(begin), static_cast<int>(end), isa);
    });
  });
  // Two passes over the keys.
  Print("window scores, 32 queries x 2048 keys", window_seconds,
        2 * 2.0 * 32 * rows * s.heads * s.head_dim, 0);

  const std::vector<float> p = RandomFloats(static_cast<size_t>(s.vocab));
  const std::vector<float> r = RandomFloats(static_cast<size_t>(s.vocab) + 1);
  volatile double sink = 0;
  const double kl_seconds = MedianSeconds(9, [&] {
    for (int i = 0; i < 16; ++i) sink = KlDivergenceOfLogits(p.data(), r.data() + 1, s.vocab, isa);
  });
  Print("KL of two rows of logits, 1 thread", kl_seconds / 16, 0,
        8.0 * static_cast<double>(s.vocab));

  PerturbArgs perturb;
  perturb.type = KvType::kBf16;
  perturb.kv_heads = s.kv_heads;
  perturb.head_dim = s.head_dim;
  perturb.kv_head_stride = rows * s.head_dim;
  std::vector<uint16_t> perturbed(k.size());
  perturb.source = k.data();
  perturb.destination = perturbed.data();
  perturb.last_row = rows;
  perturb.eta = 0.5f;
  const double noise_seconds = MedianSeconds(5, [&] {
    pool->ParallelFor(rows, 16,
                      [&](int64_t begin, int64_t end) { PerturbValues(perturb, begin, end); });
  });
  Print("perturb 2048 rows", noise_seconds, 0, 0);

  std::vector<float> gate = RandomFloats(static_cast<size_t>(16 * s.ffn));
  const std::vector<float> weight = RandomFloats(static_cast<size_t>(s.ffn));
  std::vector<float> out(gate.size());
  const double swiglu_seconds =
      MedianSeconds(9, [&] { SwiGlu(gate.data(), gate.data(), 16 * s.ffn, out.data(), isa); });
  Print("SwiGLU, 16 rows, 1 thread", swiglu_seconds, 0, 12.0 * 16 * static_cast<double>(s.ffn));
  const double norm_seconds = MedianSeconds(
      9, [&] { RmsNorm(gate.data(), weight.data(), s.hidden, 1e-5f, out.data(), 0, 16, isa); });
  Print("RMSNorm, 16 rows, 1 thread", norm_seconds, 0, 8.0 * 16 * static_cast<double>(s.hidden));
}

int Main(int argc, char** argv) {
  if (argc > 2 && argc != 9) {
    std::fprintf(stderr, "usage: %s [threads] [hidden ffn layers vocab heads kv_heads head_dim]\n",
                 argv[0]);
    return 2;
  }
  const int threads =
      argc > 1 ? std::atoi(argv[1]) : static_cast<int>(std::thread::hardware_concurrency());
  Shapes s;
  if (argc == 9) {
    s.hidden = std::atoll(argv[2]);
    s.ffn = std::atoll(argv[3]);
    s.layers = std::atoll(argv[4]);
    s.vocab = std::atoll(argv[5]);
    s.heads = std::atoi(argv[6]);
    s.kv_heads = std::atoi(argv[7]);
    s.head_dim = std::atoi(argv[8]);
  }
  if (threads < 1 || s.hidden < 32 || s.hidden % 32 != 0 || s.ffn < 32 || s.ffn % 32 != 0 ||
      s.layers < 1 || s.vocab < 1 || s.kv_heads < 1 || s.heads < 1 || s.heads % s.kv_heads != 0 ||
      s.head_dim < 2 || s.head_dim > kDecodeAttentionMaxHeadDim || s.heads * s.head_dim % 32 != 0) {
    std::fprintf(stderr, "threads and shapes must be positive, widths multiples of 32\n");
    return 2;
  }
  ThreadPool pool(threads);
  std::printf("%d threads, %s\n", threads, IsaName(BestIsa()));
  BenchBandwidth(&pool, "256 MiB (memory)", size_t{256} << 20);
  BenchBandwidth(&pool, "8 MiB (cache)", size_t{8} << 20);
  BenchRegion(&pool);
  for (Isa isa : kIsas) {
    if (!IsaSupported(isa)) continue;
    std::printf("\n%s\n", IsaName(isa));
    BenchLinears(&pool, s, isa);
    BenchAttention(&pool, s, isa, 1, 8192);
    BenchAttention(&pool, s, isa, 8, 800);
    BenchRest(&pool, s, isa);
  }
  if (PrefillAttentionSupported(s.head_dim)) {
    std::printf("\nAVX512-BF16\n");
    BenchPrefillAttention(&pool, s, 2048);
    BenchPrefillAttention(&pool, s, 7936);
  }
  return 0;
}

}  // namespace
}  // namespace ripplekv

int main(int argc, char** argv) { return ripplekv::Main(argc, argv); }
