// One new token of each sequence attends to its cached rows, in several layers one after another,
// so that none is still in the cache from the last repetition.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "bench/kernels/bench.h"
#include "bench/kernels/large_pages.h"
#include "kernels/decode_attention.h"
#include "kernels/gather_rows.h"

namespace ripplekv {
namespace {

// All caches together are several times what the processor's own hold.
constexpr double kLeastBytes = 128 << 20;
constexpr int kRowsPerPage = 32;  // as in the engine, where all rows are of one type

class Caches {
 public:
  /// A sequence's pages of a layer lie one after another, as the server's arena gives them out to a
  /// prompt, or anywhere.
  Caches(const Shapes& s, KvTypes types, int sequences, int64_t rows, bool shuffled)
      : layers_(static_cast<int>(std::ceil(kLeastBytes / LayerBytes(s, types, sequences, rows)))),
        layout_(KvPageLayout::For(
            types, KvType::kF32, s.kv_heads, s.head_dim,
            KvPageLayout::BytesForRowsPerPage(types, s.kv_heads, s.head_dim, kRowsPerPage))),
        pages_(layout_.PagesFor(rows)),
        arena_(static_cast<size_t>(pages_ * sequences * layers_) * layout_.page_bytes),
        list_(static_cast<size_t>(pages_ * sequences * layers_)),
        table_(static_cast<size_t>(sequences)),
        q_(RandomFloats(static_cast<size_t>(sequences * s.heads * s.head_dim))),
        out_(q_.size()) {
    for (size_t i = 0; i < list_.size(); ++i) list_[i] = arena_.data() + i * layout_.page_bytes;
    const std::vector<float> noise = RandomFloats(static_cast<size_t>(2 * s.kv_heads * s.head_dim));
    for (int r = 0; r < kRowsPerPage; ++r) {
      StoreRow(layout_, list_.data(), r, r, noise.data(), noise.data() + noise.size() / 2);
    }
    for (std::byte* page : list_) {
      if (page != arena_.data()) std::memcpy(page, arena_.data(), layout_.page_bytes);
    }
    if (shuffled) std::shuffle(list_.begin(), list_.end(), std::mt19937(3));
    for (PagedSequence& t : table_) t.rows = rows;
    args_.layout = layout_;
    args_.heads = s.heads;
    args_.sequences = sequences;
    args_.sequence = table_.data();
    args_.q = q_.data();
    args_.out = out_.data();
    workspace_.resize(DecodeAttentionWorkspaceFloats(args_));
    args_.workspace = workspace_.data();
    work_ = {4.0 * layers_ * static_cast<double>(rows) * sequences * s.heads * s.head_dim,
             layers_ * LayerBytes(s, types, sequences, rows)};
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
  static double LayerBytes(const Shapes& s, KvTypes types, int sequences, int64_t rows) {
    const size_t row = KvPageLayout::RowBytes(types, s.kv_heads, s.head_dim) -
                       static_cast<size_t>(s.kv_heads) * sizeof(int32_t);  // positions are not read
    return static_cast<double>(rows) * sequences * static_cast<double>(row);
  }

  int layers_;
  KvPageLayout layout_;
  int64_t pages_;
  LargePages arena_;
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
    bool shuffled = false;
  };
  for (KvType type : kKvTypes) {
    for (Isa isa : SupportedIsas()) {
      for (Case c : {Case{1, 800}, {1, 8192}, {8, 800}, {8, 8192}, {8, 8192, true}}) {
        const std::string name = std::string("decode_attention/") + KvTypeName(type) +
                                 "/sequences:" + std::to_string(c.sequences) +
                                 "/rows:" + std::to_string(c.rows) +
                                 (c.shuffled ? "/shuffled/" : "/") + IsaName(isa);
        AddBench(name, [=](benchmark::State& state) {
          Caches caches(setup.shapes, type, c.sequences, c.rows, c.shuffled);
          MeasureAgainst(state, Limit::kMemory, caches.work(), setup.pool,
                         [&] { caches.Run(setup.pool, isa); });
        });
      }
    }
  }
}

}  // namespace ripplekv
