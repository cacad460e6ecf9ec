// Linear layers on packed weights: all layers of a decode step one after another, so that caches
// see what they see in one, and the output head.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bench/kernels/bench.h"
#include "bench/kernels/large_pages.h"
#include "kernels/packed_matrix.h"
#include "kernels/panel_linear.h"
#include "kernels/panel_matrix.h"

namespace ripplekv {
namespace {

/// Random quants with the scale 0.01, repacked into `storage`.
class Matrix {
 public:
  Matrix(TensorType type, int64_t rows, int64_t cols, std::byte* storage)
      : view_{type, rows, cols, storage} {
    std::mt19937 random(2);
    std::vector<std::byte> packed(static_cast<size_t>(row_bytes(type, cols) * rows));
    for (std::byte& b : packed) b = static_cast<std::byte>(random());
    const uint16_t scale = 0x211f;
    const size_t block = static_cast<size_t>(block_bytes(type));
    for (size_t b = 0; b < packed.size(); b += block) {
      std::memcpy(&packed[b], &scale, 2);
      if (type == TensorType::kQ4_1) std::memcpy(&packed[b + 2], &scale, 2);
    }
    RepackPanels({type, rows, cols, packed.data(), row_bytes(type, cols)}, 0, view_.panels(),
                 storage);
  }
  const PanelMatrix& view() const { return view_; }
  Work work(int rows) const {
    return {2.0 * static_cast<double>(view_.rows * view_.cols) * rows,
            static_cast<double>(panel_matrix_bytes(view_.type, view_.rows, view_.cols))};
  }

 private:
  PanelMatrix view_;
};

struct Shape {
  TensorType type;
  int64_t rows, cols;
};

std::vector<Shape> ShapesOf(const Shapes& s) {
  const int64_t q = int64_t{s.heads} * s.head_dim, kv = int64_t{s.kv_heads} * s.head_dim;
  std::vector<Shape> shapes;
  for (int64_t l = 0; l < s.layers; ++l) {
    for (auto [rows, cols] : {std::pair{q, s.hidden},
                              {kv, s.hidden},
                              {kv, s.hidden},
                              {s.hidden, q},
                              {s.ffn, s.hidden},
                              {s.ffn, s.hidden},
                              {s.hidden, s.ffn}}) {
      shapes.push_back({TensorType::kQ4_1, rows, cols});
    }
  }
  shapes.push_back({TensorType::kQ8_0, s.vocab, s.hidden});
  return shapes;
}

size_t BytesOf(const std::vector<Shape>& shapes) {
  int64_t bytes = 0;
  for (const Shape& m : shapes) bytes += panel_matrix_bytes(m.type, m.rows, m.cols);
  return static_cast<size_t>(bytes);
}

/// The weights of a model, the output head last, where a server has them: together in large pages.
struct Weights {
  explicit Weights(const Shapes& s) : storage(BytesOf(ShapesOf(s))) {
    std::byte* at = storage.data();
    for (const Shape& m : ShapesOf(s)) {
      matrices.emplace_back(m.type, m.rows, m.cols, at);
      at += panel_matrix_bytes(m.type, m.rows, m.cols);
    }
    const int64_t q = int64_t{s.heads} * s.head_dim;
    const int64_t widest = std::max({s.ffn, s.hidden, q});
    x = RandomFloats(static_cast<size_t>(kPanelLinearMaxRows * widest));
    y.resize(static_cast<size_t>(kPanelLinearMaxRows * std::max(s.vocab, widest)));
    quantized.reset(static_cast<std::byte*>(std::aligned_alloc(
        64,
        static_cast<size_t>(quantized_input_bytes(kPanelLinearMaxRows, widest) + 63) / 64 * 64)));
  }

  void Multiply(const Matrix& w, int m, ThreadPool* pool, Isa isa, ActivationType type) {
    const int64_t cols = w.view().cols;
    const LinearInput input = {x.data(), cols, m, cols, type, quantized.get()};
    if (type == ActivationType::kInt16) {
      pool->ParallelFor(m, m < 3 ? m : 1, [&](int64_t begin, int64_t end) {
        QuantizeInput(input, static_cast<int>(begin), static_cast<int>(end), 0, cols / kPanelGroup);
      });
    }
    const int64_t panels = w.view().panels();
    const int64_t grain = std::clamp<int64_t>(panels / (16 * pool->threads()), 1, 16);
    pool->ParallelFor(panels, grain, [&](int64_t begin, int64_t end) {
      PanelLinear(w.view(), input, y.data(), w.view().rows, false, begin, end, isa);
    });
  }

  LargePages storage;
  std::vector<Matrix> matrices;
  std::vector<float> x, y;
  std::unique_ptr<std::byte, decltype(&std::free)> quantized{nullptr, &std::free};
};

/// Some of the matrices of a step, in its order.
struct Part {
  std::string name;
  std::vector<const Matrix*> matrices;
};

std::vector<Part> PartsOf(const Weights& weights) {
  std::vector<Part> parts = {{"qkv", {}},    {"output", {}}, {"gate_up", {}}, {"down", {}},
                             {"layers", {}}, {"head", {}},   {"step", {}}};
  constexpr size_t kPartOf[] = {0, 0, 0, 1, 2, 2, 3};  // of a layer's matrices
  for (size_t i = 0; i < weights.matrices.size(); ++i) {
    const bool head = i + 1 == weights.matrices.size();
    const std::vector<size_t> in = head
                                       ? std::vector<size_t>{5, 6}
                                       : std::vector<size_t>{kPartOf[i % std::size(kPartOf)], 4, 6};
    for (size_t part : in) parts[part].matrices.push_back(&weights.matrices[i]);
  }
  return parts;
}

void AddLinearBenches(const std::shared_ptr<Weights>& weights, ThreadPool* pool, Isa isa,
                      ActivationType type) {
  const std::string suffix =
      std::string(type == ActivationType::kInt16 ? "/int16/" : "/fp32/") + IsaName(isa);
  for (const Part& part : PartsOf(*weights)) {
    for (int m : {1, 2, 4, 8, 16}) {
      Work work;
      for (const Matrix* w : part.matrices) {
        work.flops += w->work(m).flops;
        work.bytes += w->work(m).bytes;
      }
      AddBench("linear/" + part.name + "/rows:" + std::to_string(m) + suffix,
               [=](benchmark::State& state) {
                 MeasureAgainst(state, Limit::kMemory, work, pool, [&] {
                   for (const Matrix* w : part.matrices) weights->Multiply(*w, m, pool, isa, type);
                 });
                 // Products of 16 bits are as many an instruction as those of bf16.
                 if (type != ActivationType::kInt16) return;
                 state.counters["of_dots"] =
                     state.counters["GFLOP/s"] / MeasureLimit(Limit::kBf16Dot, pool);
               });
    }
  }
}

}  // namespace

void AddLinearBenches(const BenchSetup& setup) {
  ThreadPool* const pool = setup.pool;
  const auto weights = std::make_shared<Weights>(setup.shapes);
  for (Isa isa : SupportedIsas()) {
    AddLinearBenches(weights, pool, isa, ActivationType::kF32);
    if (FastestActivations(isa) != ActivationType::kF32) {
      AddLinearBenches(weights, pool, isa, FastestActivations(isa));
    }
    AddBench(std::string("expand/ffn_to_bf16_panels/") + IsaName(isa),
             [=](benchmark::State& state) {
               const PanelMatrix& gate = weights->matrices[4].view();
               const int64_t panel = (gate.cols + 1) / 2 * 2 * kPanelRows;
               std::vector<uint16_t> expanded(static_cast<size_t>(gate.panels() * panel));
               const double bytes =
                   weights->matrices[4].work(1).bytes + 2 * static_cast<double>(expanded.size());
               MeasureAgainst(state, Limit::kL3, {0, bytes}, pool, [&] {
                 pool->ParallelFor(gate.panels(), 4, [&](int64_t begin, int64_t end) {
                   ExpandPanelsBf16(gate, begin, end, expanded.data() + begin * panel, isa);
                 });
               });
             });
  }
}

}  // namespace ripplekv
