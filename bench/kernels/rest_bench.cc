// What is neither a linear layer nor attention. Kernels over one row or head run on one thread.
#include <numeric>
#include <string>
#include <vector>

#include "bench/kernels/bench.h"
#include "kernels/gather_rows.h"
#include "kernels/key_scores.h"
#include "kernels/kl_divergence.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"
#include "kernels/value_perturbation.h"

namespace ripplekv {
namespace {

constexpr int64_t kRows = 2048;

void AddKeyScores(const BenchSetup& setup, Isa isa, const std::string& suffix) {
  const Shapes s = setup.shapes;
  for (int64_t rows : {kRows, int64_t{7936}}) {
    for (int queries : {32, 256}) {
      AddBench("key_scores/keys:" + std::to_string(rows) + "/queries:" + std::to_string(queries) +
                   suffix,
               [=](benchmark::State& state) {
                 KeyScoresArgs args;
                 args.type = KvType::kBf16;
                 args.heads = s.heads;
                 args.kv_heads = s.kv_heads;
                 args.head_dim = s.head_dim;
                 args.rows = rows;
                 args.queries = queries;
                 args.kv_head_stride = rows * s.head_dim;
                 args.end = rows - 32;
                 args.pooling = Pooling::kMax;
                 std::vector<int32_t> positions(static_cast<size_t>(queries));
                 std::iota(positions.begin(), positions.end(),
                           static_cast<int32_t>(rows - queries));
                 const std::vector<uint16_t> q =
                     RandomBf16(static_cast<size_t>(queries * s.heads * s.head_dim));
                 const std::vector<uint16_t> k =
                     RandomBf16(static_cast<size_t>(s.kv_heads * args.kv_head_stride));
                 std::vector<float> scores(static_cast<size_t>(s.heads * args.end));
                 std::vector<float> workspace(
                     static_cast<size_t>(KeyScoresWorkspaceFloats(args, setup.pool->threads())));
                 args.positions = positions.data();
                 args.q = q.data();
                 args.k = k.data();
                 args.scores = scores.data();
                 args.workspace = workspace.data();
                 const double pairs = static_cast<double>(queries * rows) * s.heads;
                 MeasureAgainst(state, Bf16Limit(), {2 * pairs * s.head_dim, 0}, setup.pool,
                                [&] { KeyScores(args, setup.pool, isa); });
               });
    }
  }
}

void AddOneThread(const BenchSetup& setup, Isa isa, const std::string& suffix) {
  const Shapes s = setup.shapes;
  AddBench("kl_divergence" + suffix, [=](benchmark::State& state) {
    const std::vector<float> p = RandomFloats(static_cast<size_t>(s.vocab) + 1);
    MeasureAgainst(state, Limit::kNone, {0, 8.0 * static_cast<double>(s.vocab)}, setup.pool, [&] {
      benchmark::DoNotOptimize(KlDivergenceOfLogits(p.data(), p.data() + 1, s.vocab, isa));
    });
  });
  AddBench("swiglu/rows:16" + suffix, [=](benchmark::State& state) {
    const std::vector<float> x = RandomFloats(static_cast<size_t>(16 * s.ffn));
    std::vector<float> out(x.size());
    MeasureAgainst(state, Limit::kNone, {0, 12.0 * static_cast<double>(x.size())}, setup.pool,
                   [&] { SwiGlu(x.data(), x.data(), 16 * s.ffn, out.data(), isa); });
  });
  AddBench("rms_norm/rows:16" + suffix, [=](benchmark::State& state) {
    const std::vector<float> x = RandomFloats(static_cast<size_t>(16 * s.hidden));
    const std::vector<float> weight = RandomFloats(static_cast<size_t>(s.hidden));
    std::vector<float> out(x.size());
    MeasureAgainst(state, Limit::kNone, {0, 8.0 * static_cast<double>(x.size())}, setup.pool, [&] {
      RmsNorm(x.data(), weight.data(), s.hidden, 1e-5f, out.data(), 0, 16, isa);
    });
  });
}

/// Every fourth row of a layer into pages.
void AddGather(const BenchSetup& setup) {
  const Shapes s = setup.shapes;
  AddBench("gather_rows/rows:2048", [=](benchmark::State& state) {
    const int64_t source_rows = 4 * kRows;
    const std::vector<uint16_t> rows =
        RandomBf16(static_cast<size_t>(2 * source_rows * s.kv_heads * s.head_dim));
    GatherRowsArgs args;
    args.layout = KvPageLayout::For(KvType::kBf16, s.kv_heads, s.head_dim, 16384);
    args.k = rows.data();
    args.v = rows.data() + rows.size() / 2;
    args.kv_head_stride = source_rows * s.head_dim;
    std::vector<int32_t> indices;
    for (int64_t i = 0; i < kRows; ++i) indices.push_back(static_cast<int32_t>(4 * i));
    args.indices = indices.data();
    const size_t pages = static_cast<size_t>(args.layout.PagesFor(kRows));
    std::vector<std::byte> arena(pages * args.layout.page_bytes + 64);
    std::byte* const base =
        arena.data() + (64 - reinterpret_cast<uintptr_t>(arena.data()) % 64) % 64;
    std::vector<std::byte*> list;
    for (size_t i = 0; i < pages; ++i) list.push_back(base + i * args.layout.page_bytes);
    args.pages = list.data();
    const double bytes = 8.0 * static_cast<double>(kRows * s.kv_heads * s.head_dim);
    MeasureAgainst(state, Limit::kNone, {0, bytes}, setup.pool, [&] {
      setup.pool->ParallelFor(kRows, 64,
                              [&](int64_t begin, int64_t end) { GatherRows(args, begin, end); });
    });
  });
}

void AddRope(const BenchSetup& setup) {
  const Shapes s = setup.shapes;
  AddBench("rope/rows:16", [=](benchmark::State& state) {
    std::vector<float> x = RandomFloats(static_cast<size_t>(16 * s.heads * s.head_dim));
    const size_t pairs = static_cast<size_t>(s.head_dim / 2);
    const std::vector<float> frequency(pairs, 0.01f);
    std::vector<float> cos(pairs), sin(pairs);
    RopeAngles(1000, frequency.data(), s.head_dim / 2, cos.data(), sin.data());
    MeasureAgainst(state, Limit::kNone, {0, 8.0 * static_cast<double>(x.size())}, setup.pool, [&] {
      Rope(x.data(), 16 * s.heads, s.head_dim, cos.data(), sin.data());
      benchmark::ClobberMemory();
    });
  });
}

void AddPerturbation(const BenchSetup& setup) {
  const Shapes s = setup.shapes;
  AddBench("perturb_values/rows:2048", [=](benchmark::State& state) {
    const std::vector<uint16_t> v =
        RandomBf16(static_cast<size_t>(kRows * s.kv_heads * s.head_dim));
    std::vector<uint16_t> perturbed(v.size());
    PerturbArgs args;
    args.type = KvType::kBf16;
    args.kv_heads = s.kv_heads;
    args.head_dim = s.head_dim;
    args.kv_head_stride = kRows * s.head_dim;
    args.source = v.data();
    args.destination = perturbed.data();
    args.last_row = kRows;
    args.eta = 0.5f;
    MeasureAgainst(state, Limit::kNone, {0, 4.0 * static_cast<double>(v.size())}, setup.pool, [&] {
      setup.pool->ParallelFor(kRows, 16,
                              [&](int64_t begin, int64_t end) { PerturbValues(args, begin, end); });
    });
  });
}

}  // namespace

void AddRestBenches(const BenchSetup& setup) {
  AddGather(setup);
  AddRope(setup);
  AddPerturbation(setup);
  for (Isa isa : SupportedIsas()) {
    const std::string suffix = std::string("/") + IsaName(isa);
    AddKeyScores(setup, isa, suffix);
    AddOneThread(setup, isa, suffix);
  }
}

}  // namespace ripplekv
