// One layer of a prompt's prefill in chunks of 256 tokens.
#include <algorithm>
#include <string>
#include <vector>

#include "bench/kernels/bench.h"
#include "kernels/prefill_attention.h"

namespace ripplekv {

void AddPrefillAttentionBenches(const BenchSetup& setup) {
  const Shapes s = setup.shapes;
  if (!PrefillAttentionSupported(s.head_dim)) return;
  for (int64_t tokens : {512, 2048, 7936}) {
    AddBench("prefill_attention/tokens:" + std::to_string(tokens), [=](benchmark::State& state) {
      const std::vector<uint16_t> q =
          RandomBf16(static_cast<size_t>(tokens * s.heads * s.head_dim));
      const std::vector<uint16_t> kv =
          RandomBf16(static_cast<size_t>(2 * tokens * s.kv_heads * s.head_dim));
      std::vector<uint16_t> out(q.size());
      PrefillAttentionArgs args;
      args.heads = s.heads;
      args.kv_heads = s.kv_heads;
      args.head_dim = s.head_dim;
      args.k = kv.data();
      args.v = kv.data() + kv.size() / 2;
      args.kv_head_stride = tokens * s.head_dim;
      const double pairs = static_cast<double>(tokens) * static_cast<double>(tokens + 1) / 2;
      const Work work = {4 * pairs * s.heads * s.head_dim, 0};
      MeasureAgainst(state, Bf16Limit(), work, setup.pool, [&] {
        for (int64_t begin = 0; begin < tokens; begin += 256) {
          args.queries = static_cast<int>(std::min<int64_t>(256, tokens - begin));
          args.cached = begin;
          args.q = q.data() + begin * s.heads * s.head_dim;
          args.out = out.data() + begin * s.heads * s.head_dim;
          PrefillAttention(args, setup.pool);
        }
      });
    });
  }
}

}  // namespace ripplekv
