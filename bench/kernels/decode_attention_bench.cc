// One new token of each sequence attends to its cached rows, in several layers one after another,
// so that none is still in the cache from the last repetition.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "bench/kernels/bench.h"
#include "kernels/decode_attention.h"

namespace ripplekv {
namespace {

// All caches together are several times what the processor's own hold.
constexpr double kLeastBytes = 128 << 20;
constexpr size_t kPageBytes = 16384;

class Caches {
 public:
  Caches(const Shapes& s, KvType type, int sequences, int64_t rows)
      : layers_(static_cast<int>(std::ceil(kLeastBytes / LayerBytes(s, type, sequences, rows)))),
        pages_(KvPageLayout::For(type, s.kv_heads, s.head_dim, kPageBytes).PagesFor(rows)),
        arena_(static_cast<size_t>(pages_ * sequences * layers_) * kPageBytes + 64),
        list_(static_cast<size_t>(pages_ * sequences * layers_)),
        table_(static_cast<size_t>(sequences)),
        q_(RandomFloats(static_cast<size_t>(sequences * s.heads * s.head_dim))),
        out_(q_.size()) {
    const std::vector<uint16_t> noise = RandomBf16(1 << 16);
    const size_t stretch = noise.size() * sizeof(uint16_t);
    for (size_t at = 0; at < arena_.size(); at += stretch) {
      std::memcpy(&arena_[at], noise.data(), std::min(stretch, arena_.size() - at));
    }
    std::byte* const base =
        arena_.data() + (64 - reinterpret_cast<uintptr_t>(arena_.data()) % 64) % 64;
    for (size_t i = 0; i < list_.size(); ++i) list_[i] = base + i * kPageBytes;
    std::shuffle(list_.begin(), list_.end(), std::mt19937(3));
    for (PagedSequence& t : table_) t.rows = rows;
    args_.layout = KvPageLayout::For(type, s.kv_heads, s.head_dim, kPageBytes);
    args_.heads = s.heads;
    args_.sequences = sequences;
    args_.sequence = table_.data();
    args_.q = q_.data();
    args_.out = out_.data();
    workspace_.resize(DecodeAttentionWorkspaceFloats(args_));
    args_.workspace = workspace_.data();
    work_ = {4.0 * layers_ * static_cast<double>(rows) * sequences * s.heads * s.head_dim,
             layers_ * LayerBytes(s, type, sequences, rows)};
  }

  /// Of Run().
  const Work& work() const { return work_; }

  void Run(ThreadPool* pool, Isa isa) {
    for (int l = 0; l < layers_; ++l) {
      for (int i = 0; i < args_.sequences; ++i) {
        table_[static_cast<size_t>(i)].pages = list_.data() + (l * args_.sequences + i) * pages_;
      }
      DecodeAttention(args_, pool, isa);
    }
  }

 private:
  static double LayerBytes(const Shapes& s, KvType type, int sequences, int64_t rows) {
    return 2.0 * static_cast<double>(rows) * sequences * s.kv_heads * s.head_dim *
           static_cast<double>(KvTypeBytes(type));
  }

  int layers_;
  int64_t pages_;
  std::vector<std::byte> arena_;
  std::vector<std::byte*> list_;
  std::vector<PagedSequence> table_;
  std::vector<float> q_, out_, workspace_;
  DecodeAttentionArgs args_;
  Work work_;
};

}  // namespace

void AddDecodeAttentionBenches(const BenchSetup& setup) {
  struct Case {
    int sequences;
    int64_t rows;
  };
  for (Isa isa : SupportedIsas()) {
    for (Case c : {Case{1, 800}, {1, 8192}, {8, 800}, {8, 8192}}) {
      const std::string name = "decode_attention/bf16/sequences:" + std::to_string(c.sequences) +
                               "/rows:" + std::to_string(c.rows) + "/" + IsaName(isa);
      AddBench(name, [=](benchmark::State& state) {
        Caches caches(setup.shapes, KvType::kBf16, c.sequences, c.rows);
        MeasureAgainst(state, Limit::kMemory, caches.work(), setup.pool,
                       [&] { caches.Run(setup.pool, isa); });
      });
    }
  }
}

}  // namespace ripplekv
