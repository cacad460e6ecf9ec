#include "model/decoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/bf16.h"
#include "kernels/prefill_linear.h"
#include "tests/model/tiny_llama.h"

namespace ripplekv {
namespace {

std::shared_ptr<const Weights> MakeWeights(const TinyLlamaOptions& options) {
  const std::vector<std::byte> bytes = TinyLlama(options).Build();
  auto file = GgufFile::Parse(bytes);
  EXPECT_TRUE(file.ok()) << file.status();
  auto config = ModelConfig::FromGguf(*file);
  EXPECT_TRUE(config.ok()) << config.status();
  auto weights = Weights::Load(*file, *config);
  EXPECT_TRUE(weights.ok()) << weights.status();
  return *weights;
}

/// What a chunk at a layer gives: q, k, v and the hidden states after it, for attention = q.
struct Outputs {
  std::vector<uint16_t> q, k, v;
  std::vector<float> hidden;
  bool operator==(const Outputs&) const = default;
};

/// Pushes `tokens` through a layer in pieces of `piece`.
Outputs RunLayer(Decoder& decoder, int layer, int64_t first_position, int tokens, int piece) {
  const ModelConfig& c = decoder.config();
  const auto width = static_cast<size_t>(c.hidden);
  const auto n = static_cast<size_t>(tokens);
  const auto q_row = static_cast<size_t>(c.heads * c.head_dim);
  const int64_t stride = int64_t{tokens} * c.head_dim;
  Outputs out;
  out.q.resize(n * q_row);
  out.k.resize(n * static_cast<size_t>(c.kv_heads * c.head_dim));
  out.v.resize(out.k.size());
  out.hidden.resize(n * width);
  std::vector<int32_t> ids(n);
  for (size_t i = 0; i < n; ++i) ids[i] = static_cast<int32_t>(i * 37 % 256);
  decoder.Embed(ids, out.hidden.data());
  decoder.ExpandLayer(layer);
  for (int t = 0; t < tokens; t += piece) {
    const int count = std::min(piece, tokens - t);
    const auto at = static_cast<size_t>(t);
    uint16_t* const q = out.q.data() + at * q_row;
    EXPECT_TRUE(decoder
                    .ProjectQkv(layer, out.hidden.data() + at * width, count, first_position + t, q,
                                out.k.data() + t * c.head_dim, out.v.data() + t * c.head_dim,
                                stride)
                    .ok());
    EXPECT_TRUE(decoder.Finish(layer, q, count, out.hidden.data() + at * width).ok());
  }
  return out;
}

std::vector<float> Floats(const std::vector<uint16_t>& x) {
  std::vector<float> out;
  for (uint16_t v : x) out.push_back(Bf16ToFloat(v));
  return out;
}

double RelativeError(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    error += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(error / norm);
}

TEST(DecoderTest, ChunksByKernelsAgreeWithLibTorch) {
  ThreadPool pool(2);
  for (const TensorType type : {TensorType::kQ4_1, TensorType::kQ8_0, TensorType::kBF16}) {
    TinyLlamaOptions options;
    options.matrix_type = type;
    const auto weights = MakeWeights(options);
    auto best = *Decoder::Create(weights, ComputeType::kBf16, &pool);
    auto torch = *Decoder::Create(weights, ComputeType::kBf16, &pool, ChunkPath::kLibTorch);
    for (int tokens : {1, 31, 77, 256}) {
      const Outputs a = RunLayer(*best, 1, 40, tokens, Decoder::kChunkTokens);
      const Outputs b = RunLayer(*torch, 1, 40, tokens, Decoder::kChunkTokens);
      EXPECT_LE(RelativeError(Floats(a.q), Floats(b.q)), 1e-2) << tokens;
      EXPECT_LE(RelativeError(Floats(a.k), Floats(b.k)), 1e-2) << tokens;
      EXPECT_LE(RelativeError(Floats(a.v), Floats(b.v)), 1e-2) << tokens;
      EXPECT_LE(RelativeError(a.hidden, b.hidden), 1e-2) << tokens;
    }
  }
}

/// The kernels' bits do not depend on how a prompt is cut into chunks, nor on the threads.
TEST(DecoderTest, ATokensBitsDependOnItsPositionOnly) {
  const auto weights = MakeWeights({});
  ThreadPool one(1);
  auto decoder = *Decoder::Create(weights, ComputeType::kBf16, &one);
  const Outputs whole = RunLayer(*decoder, 0, 300, 200, 200);
  for (int threads : {1, 2, 6}) {
    ThreadPool pool(threads);
    auto other = *Decoder::Create(weights, ComputeType::kBf16, &pool);
    for (int piece : {1, 50, 200}) {
      EXPECT_EQ(RunLayer(*other, 0, 300, 200, piece), whole) << threads << " " << piece;
    }
  }
}

}  // namespace
}  // namespace ripplekv
