// One layer's linears of prefill, a chunk of 256 tokens: on expanded weights, with what follows
// them on the way to memory.
#include <string>
#include <vector>

#include "bench/kernels/bench.h"
#include "kernels/prefill_linear.h"

namespace ripplekv {
namespace {

constexpr int kTokens = 256;

void AddLinear(const BenchSetup& setup, const std::string& name, int64_t rows, int64_t cols,
               int matrices,
               void (*run)(const PrefillLinearArgs&, const uint16_t*, int64_t, std::vector<float>&,
                           int64_t, int64_t)) {
  AddBench("prefill_linear/" + name, [=](benchmark::State& state) {
    const std::vector<uint16_t> x = RandomBf16(static_cast<size_t>(kTokens * cols));
    const std::vector<uint16_t> w = RandomBf16(static_cast<size_t>(matrices * rows * cols));
    std::vector<float> out(static_cast<size_t>(kTokens * rows));
    const Work work = {2.0 * kTokens * static_cast<double>(matrices * rows * cols), 0};
    const PrefillLinearArgs args = {kTokens, cols, x.data()};
    MeasureAgainst(state, Bf16Limit(), work, setup.pool, [&] {
      setup.pool->ParallelFor(rows / kPrefillLinearRows, 2, [&](int64_t begin, int64_t end) {
        run(args, w.data(), rows, out, begin, end);
      });
    });
  });
}

}  // namespace

void AddPrefillLinearBenches(const BenchSetup& setup) {
  const Shapes s = setup.shapes;
  const auto add = [](const PrefillLinearArgs& args, const uint16_t* w, int64_t rows,
                      std::vector<float>& out, int64_t begin,
                      int64_t end) { PrefillLinearAdd(args, w, out.data(), rows, begin, end); };
  AddLinear(setup, "output", s.hidden, int64_t{s.heads} * s.head_dim, 1, add);
  AddLinear(setup, "swiglu", s.ffn, s.hidden, 2,
            [](const PrefillLinearArgs& args, const uint16_t* w, int64_t rows,
               std::vector<float>& out, int64_t begin, int64_t end) {
              PrefillLinearSwiGlu(args, w, w + rows * args.cols,
                                  reinterpret_cast<uint16_t*>(out.data()), rows, begin, end);
            });
  AddLinear(setup, "down", s.hidden, s.ffn, 1, add);
}

}  // namespace ripplekv
