// Linear layers on packed weights: all layers of a decode step one after another, so that caches
// see what they see in one, and the output head.
#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bench/kernels/bench.h"
#include "kernels/packed_linear.h"
#include "kernels/packed_matrix.h"

namespace ripplekv {
namespace {

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
  Work work(int rows) const {
    return {2.0 * static_cast<double>(view_.rows * view_.cols) * rows,
            static_cast<double>(bytes_.size())};
  }

 private:
  std::vector<std::byte> bytes_;
  PackedMatrix view_;
};

/// The weights of a model.
struct Weights {
  explicit Weights(const Shapes& s) : head(TensorType::kQ8_0, s.vocab, s.hidden) {
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
    const size_t widest = static_cast<size_t>(std::max({s.ffn, s.hidden, q}));
    x = RandomFloats(kPackedLinearMaxRows * widest);
    y.resize(kPackedLinearMaxRows * std::max(static_cast<size_t>(s.vocab), widest));
  }

  void Multiply(const Matrix& w, int m, ThreadPool* pool, Isa isa) {
    const int64_t rows = w.view().rows;
    pool->ParallelFor(rows, 32, [&](int64_t begin, int64_t end) {
      PackedLinear(w.view(), x.data(), w.view().cols, m, y.data(), rows, begin, end, isa);
    });
  }

  std::vector<std::unique_ptr<Matrix>> layers;
  Matrix head;
  std::vector<float> x, y;
};

}  // namespace

void AddLinearBenches(const BenchSetup& setup) {
  ThreadPool* const pool = setup.pool;
  const auto weights = std::make_shared<Weights>(setup.shapes);
  for (Isa isa : SupportedIsas()) {
    const std::string suffix = std::string("/") + IsaName(isa);
    for (int m : {1, 2, 4, 8, 16}) {
      const std::string rows = "/rows:" + std::to_string(m) + suffix;
      Work work;
      for (const auto& w : weights->layers) {
        work.flops += w->work(m).flops;
        work.bytes += w->work(m).bytes;
      }
      AddBench("linear/layers" + rows, [=](benchmark::State& state) {
        MeasureAgainst(state, Limit::kMemory, work, pool, [&] {
          for (const auto& w : weights->layers) weights->Multiply(*w, m, pool, isa);
        });
      });
      AddBench("linear/head" + rows, [=](benchmark::State& state) {
        MeasureAgainst(state, Limit::kMemory, weights->head.work(m), pool,
                       [&] { weights->Multiply(weights->head, m, pool, isa); });
      });
      const Work step = {work.flops + weights->head.work(m).flops,
                         work.bytes + weights->head.work(m).bytes};
      AddBench("linear/step" + rows, [=](benchmark::State& state) {
        MeasureAgainst(state, Limit::kMemory, step, pool, [&] {
          for (const auto& w : weights->layers) weights->Multiply(*w, m, pool, isa);
          weights->Multiply(weights->head, m, pool, isa);
        });
      });
    }
    AddBench("expand/ffn_to_bf16" + suffix, [=](benchmark::State& state) {
      const PackedMatrix& gate = weights->layers[4]->view();
      std::vector<uint16_t> expanded(static_cast<size_t>(gate.rows * gate.cols));
      const double bytes = static_cast<double>(gate.rows * gate.row_bytes) +
                           2 * static_cast<double>(expanded.size());
      MeasureAgainst(state, Limit::kL3, {0, bytes}, pool, [&] {
        pool->ParallelFor(gate.rows, 64, [&](int64_t begin, int64_t end) {
          ExpandRowsBf16(gate, begin, end, expanded.data() + begin * gate.cols, isa);
        });
      });
    });
  }
}

}  // namespace ripplekv
