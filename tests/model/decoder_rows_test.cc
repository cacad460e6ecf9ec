#include "model/decoder_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>

#include "tests/model/tiny_llama.h"

namespace ripplekv {
namespace {

using Doubles = std::vector<double>;

struct Model {
  explicit Model(const TinyLlamaOptions& options)
      : bytes(TinyLlama(options).Build()),
        file(*GgufFile::Parse(bytes)),
        weights(*Weights::Load(file, *ModelConfig::FromGguf(file))) {
    for (int i = 0; i < options.head_dim / 2; ++i) {
      inv_freq.push_back(
          std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(options.head_dim)));
    }
  }

  /// W x, by the file's own rows.
  Doubles Multiply(const std::string& name, const Doubles& x) const {
    const GgufTensor* tensor = file.FindTensor(name);
    const PackedMatrix w{tensor->type, tensor->shape[1], tensor->shape[0], tensor->data,
                         row_bytes(tensor->type, tensor->shape[0])};
    std::vector<float> values(static_cast<size_t>(w.rows * w.cols));
    ExpandRows(w, 0, w.rows, values.data());
    Doubles y(static_cast<size_t>(w.rows));
    for (size_t i = 0; i < values.size(); ++i) {
      y[i / x.size()] += values[i] * x[i % x.size()];
    }
    return y;
  }

  std::vector<std::byte> bytes;
  GgufFile file;
  std::shared_ptr<const Weights> weights;
  std::vector<float> inv_freq;
};

// The norms' weights of the tiny model are 1.
Doubles Norm(const Doubles& x) {
  double sum = 0;
  for (double v : x) sum += v * v;
  Doubles y = x;
  for (double& v : y) v /= std::sqrt(sum / static_cast<double>(x.size()) + 1e-5);
  return y;
}

void Rotate(Doubles* x, int head_dim, int32_t position, const std::vector<float>& inv_freq) {
  for (size_t i = 0; i < x->size(); i += 2) {
    const float angle =
        static_cast<float>(position) * inv_freq[i % static_cast<size_t>(head_dim) / 2];
    const double a = (*x)[i], b = (*x)[i + 1];
    (*x)[i] = a * std::cos(angle) - b * std::sin(angle);
    (*x)[i + 1] = a * std::sin(angle) + b * std::cos(angle);
  }
}

void Add(Doubles* x, const Doubles& y) {
  for (size_t i = 0; i < x->size(); ++i) (*x)[i] += y[i];
}

void ExpectNear(const float* values, const Doubles& expected, double tolerance, const char* what) {
  double size = 0;
  for (double v : expected) size = std::max(size, std::abs(v));
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(values[i], expected[i], tolerance * size) << what << " " << i;
  }
}

struct RowsInput {
  std::vector<float> hidden, attention;
  std::vector<int32_t> positions;
};

RowsInput RandomInput(const ModelConfig& c, int rows) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  RowsInput input;
  input.hidden.resize(static_cast<size_t>(rows * c.hidden));
  input.attention.resize(static_cast<size_t>(rows * c.heads * c.head_dim));
  for (float& v : input.hidden) v = normal(random);
  for (float& v : input.attention) v = normal(random);
  for (int r = 0; r < rows; ++r) input.positions.push_back(r * 37 % 400);
  return input;
}

struct RowsOutput {
  std::vector<float> q, k, v, hidden, logits;
  bool operator==(const RowsOutput&) const = default;
};

/// Rows [first, first + rows) of `input` through layer 1 and the head.
RowsOutput RunRows(const Model& model, ActivationType type, ThreadPool* pool,
                   const RowsInput& input, int first, int rows) {
  const ModelConfig& c = model.weights->config();
  DecoderRows decoder(*model.weights, type, model.inv_freq, pool);
  const auto n = static_cast<size_t>(rows);
  const auto q_width = static_cast<size_t>(c.heads * c.head_dim);
  const auto kv_width = static_cast<size_t>(c.kv_heads * c.head_dim);
  const auto width = static_cast<size_t>(c.hidden);
  RowsOutput out;
  out.q.resize(n * q_width);
  out.k.resize(n * kv_width);
  out.v.resize(n * kv_width);
  out.logits.resize(n * static_cast<size_t>(c.vocab));
  const float* hidden = input.hidden.data() + static_cast<size_t>(first) * width;
  out.hidden.assign(hidden, hidden + n * width);
  for (int layer : {0, 1}) {  // the angles are kept from layer to layer
    decoder.ProjectQkv(layer, out.hidden.data(), rows, input.positions.data() + first, out.q.data(),
                       out.k.data(), out.v.data());
  }
  decoder.Finish(1, input.attention.data() + static_cast<size_t>(first) * q_width, rows,
                 out.hidden.data());
  decoder.Logits(out.hidden.data(), rows, out.logits.data());
  return out;
}

std::vector<TinyLlamaOptions> Shapes() {
  std::vector<TinyLlamaOptions> shapes;
  for (TensorType type : kTensorTypes) {
    shapes.push_back({.matrix_type = type, .embedding_type = type});
  }
  shapes.push_back({.heads = 3,
                    .kv_heads = 1,
                    .head_dim = 24,
                    .hidden = 52,
                    .ffn = 75,
                    .tied_output = false,
                    .matrix_type = TensorType::kBF16,
                    .embedding_type = TensorType::kF16});
  return shapes;
}

std::vector<ActivationType> Types() {
  std::vector<ActivationType> types = {ActivationType::kF32};
  if (FastestActivations(BestIsa()) != types[0]) types.push_back(FastestActivations(BestIsa()));
  return types;
}

TEST(DecoderRowsTest, AgreesWithDoublePrecision) {
  ThreadPool pool(2);
  for (const TinyLlamaOptions& shape : Shapes()) {
    const Model model(shape);
    const ModelConfig& c = model.weights->config();
    const RowsInput input = RandomInput(c, 5);
    for (ActivationType type : Types()) {
      SCOPED_TRACE(std::string(name(shape.matrix_type)) +
                   (type == ActivationType::kF32 ? " fp32" : " int16"));
      const double tolerance = type == ActivationType::kF32 ? 1e-5 : 3e-4;
      const RowsOutput out = RunRows(model, type, &pool, input, 0, 5);
      for (int r = 0; r < 5; ++r) {
        const auto row = static_cast<size_t>(r);
        const auto hidden = input.hidden.begin() + r * c.hidden;
        const auto attention = input.attention.begin() + r * c.heads * c.head_dim;
        Doubles x(hidden, hidden + c.hidden);
        const Doubles normed = Norm(x);
        Doubles q = model.Multiply("blk.1.attn_q.weight", normed);
        Doubles k = model.Multiply("blk.1.attn_k.weight", normed);
        Rotate(&q, c.head_dim, input.positions[row], model.inv_freq);
        Rotate(&k, c.head_dim, input.positions[row], model.inv_freq);
        ExpectNear(&out.q[row * q.size()], q, tolerance, "q");
        ExpectNear(&out.k[row * k.size()], k, tolerance, "k");
        ExpectNear(&out.v[row * k.size()], model.Multiply("blk.1.attn_v.weight", normed), tolerance,
                   "v");
        Add(&x, model.Multiply("blk.1.attn_output.weight",
                               Doubles(attention, attention + c.heads * c.head_dim)));
        Doubles gate = model.Multiply("blk.1.ffn_gate.weight", Norm(x));
        const Doubles up = model.Multiply("blk.1.ffn_up.weight", Norm(x));
        for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
        Add(&x, model.Multiply("blk.1.ffn_down.weight", gate));
        ExpectNear(&out.hidden[row * x.size()], x, tolerance, "hidden");
        const Doubles logits =
            model.Multiply(shape.tied_output ? "token_embd.weight" : "output.weight", Norm(x));
        ExpectNear(&out.logits[row * logits.size()], logits, tolerance, "logits");
      }
    }
  }
}

TEST(DecoderRowsTest, BitsOfARowDoNotDependOnTheOthersOrOnThreads) {
  constexpr int kRows = DecoderRows::kMaxRows;
  ThreadPool one(1);
  for (const TinyLlamaOptions& shape : Shapes()) {
    const Model model(shape);
    const RowsInput input = RandomInput(model.weights->config(), kRows);
    for (ActivationType type : Types()) {
      std::vector<RowsOutput> alone;
      for (int r = 0; r < kRows; ++r) alone.push_back(RunRows(model, type, &one, input, r, 1));
      for (int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        for (int rows = 1; rows <= kRows; ++rows) {
          const RowsOutput together = RunRows(model, type, &pool, input, kRows - rows, rows);
          RowsOutput joined;
          for (int r = kRows - rows; r < kRows; ++r) {
            const RowsOutput& row = alone[static_cast<size_t>(r)];
            joined.q.insert(joined.q.end(), row.q.begin(), row.q.end());
            joined.k.insert(joined.k.end(), row.k.begin(), row.k.end());
            joined.v.insert(joined.v.end(), row.v.begin(), row.v.end());
            joined.hidden.insert(joined.hidden.end(), row.hidden.begin(), row.hidden.end());
            joined.logits.insert(joined.logits.end(), row.logits.begin(), row.logits.end());
          }
          ASSERT_TRUE(together == joined)
              << name(shape.matrix_type) << ", " << rows << " rows, " << threads << " threads";
        }
      }
    }
  }
}

}  // namespace
}  // namespace ripplekv
