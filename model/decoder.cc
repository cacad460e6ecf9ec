#include "model/decoder.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/bf16.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"

namespace ripplekv {

std::string_view ComputeTypeName(ComputeType type) {
  return type == ComputeType::kF32 ? "fp32" : "bf16";
}

absl::StatusOr<ComputeType> ParseComputeType(std::string_view name) {
  if (name == "fp32") return ComputeType::kF32;
  if (name == "bf16") return ComputeType::kBf16;
  return absl::InvalidArgumentError(
      absl::StrCat("compute type '", std::string(name), "' is unknown; use fp32 or bf16"));
}

/// The chunk path's tensors: one layer's weights in the compute type and scratch for one chunk of
/// tokens.
struct Decoder::Chunk {
  int layer = -1;
  at::ScalarType scalar;
  at::Tensor w_qkv;      // [heads*d + 2*kv_heads*d, hidden]
  at::Tensor w_o;        // [hidden, heads*d]
  at::Tensor w_gate_up;  // [2*ffn, hidden]
  at::Tensor w_down;     // [hidden, ffn]
  at::Tensor x;          // [kChunkTokens, max(hidden, heads*d)] input of the layer's matrices
  at::Tensor qkv;        // [kChunkTokens, heads*d + 2*kv_heads*d]
  at::Tensor gate_up;    // [kChunkTokens, 2*ffn]
  at::Tensor activated;  // [kChunkTokens, ffn]
  at::Tensor projected;  // [kChunkTokens, hidden]
};

namespace {

int PaddedTokens(int tokens) {
  return (tokens + Decoder::kTileTokens - 1) / Decoder::kTileTokens * Decoder::kTileTokens;
}

/// Writes rows [row, row + m.rows) of `out` ([*, cols], contiguous) with the expanded matrix.
void ExpandInto(const PanelMatrix& m, at::Tensor& out, int64_t row) {
  const int64_t cols = m.cols;
  at::parallel_for(0, m.rows, 64, [&](int64_t begin, int64_t end) {
    if (out.scalar_type() == at::kFloat) {
      ExpandRows(m, begin, end, static_cast<float*>(out.data_ptr()) + (row + begin) * cols);
    } else {
      ExpandRowsBf16(m, begin, end, static_cast<uint16_t*>(out.data_ptr()) + (row + begin) * cols);
    }
  });
}

/// out[0 .. rows) = x[0 .. rows) w^T; `rows` is a multiple of kTileTokens, so the product's shape
/// is one of a few.
void Multiply(const at::Tensor& x, const at::Tensor& w, int rows, at::Tensor& out) {
  at::Tensor target = out.narrow(0, 0, rows);
  at::mm_out(target, x.narrow(0, 0, rows), w.t());
}

/// Reads a row of the compute type as fp32.
const float* LoadRow(const at::Tensor& t, int64_t row, int64_t width, float* buffer) {
  if (t.scalar_type() == at::kFloat) return static_cast<const float*>(t.data_ptr()) + row * width;
  const uint16_t* p = static_cast<const uint16_t*>(t.data_ptr()) + row * width;
  for (int64_t i = 0; i < width; ++i) buffer[i] = Bf16ToFloat(p[i]);
  return buffer;
}

/// Writes fp32 values as elements of `type` at `offset` elements.
void StoreValues(const float* values, int64_t n, at::ScalarType type, void* base, int64_t offset) {
  if (type == at::kFloat) {
    std::memcpy(static_cast<float*>(base) + offset, values, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  uint16_t* p = static_cast<uint16_t*>(base) + offset;
  for (int64_t i = 0; i < n; ++i) p[i] = FloatToBf16(values[i]);
}

void ZeroRows(at::Tensor& t, int64_t begin, int64_t end, int64_t width) {
  const size_t row = static_cast<size_t>(width) * t.element_size();
  std::memset(static_cast<char*>(t.data_ptr()) + static_cast<size_t>(begin) * row, 0,
              static_cast<size_t>(end - begin) * row);
}

/// The same number of threads for LibTorch on whichever thread drives the decoder (OpenMP keeps it
/// per thread).
void UseThreads(int threads) {
  if (at::get_num_threads() != threads) at::set_num_threads(threads);
}

template <typename F>
absl::Status CatchTorch(const char* what, int layer, F f) {
  try {
    c10::InferenceMode inference;
    f();
    return absl::OkStatus();
  } catch (const std::exception& e) {
    return absl::InternalError(
        absl::StrCat("LibTorch failed in ", what, " of layer ", layer, ": ", e.what()));
  }
}

}  // namespace

Decoder::Decoder(std::shared_ptr<const Weights> weights, ComputeType compute, ThreadPool* pool)
    : weights_(std::move(weights)), compute_(compute), pool_(pool) {}

Decoder::~Decoder() = default;

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Create(std::shared_ptr<const Weights> weights,
                                                         ComputeType compute, ThreadPool* pool,
                                                         ChunkPath path) {
  std::unique_ptr<Decoder> decoder(new Decoder(std::move(weights), compute, pool));
  const ModelConfig& c = decoder->config();
  const int64_t d = c.head_dim;

  // Angles in fp32, as the reference implementations compute them.
  decoder->inv_freq_.resize(static_cast<size_t>(d / 2));
  for (int64_t i = 0; i < d / 2; ++i) {
    double f =
        1.0 / std::pow(c.rope_freq_base, static_cast<double>(2 * i) / static_cast<double>(d));
    if (c.rope_scaling == RopeScaling::kLinear) f /= c.rope_scaling_factor;
    if (c.rope_scaling == RopeScaling::kPerFreq)
      f /= decoder->weights().rope_factors()[static_cast<size_t>(i)];
    decoder->inv_freq_[static_cast<size_t>(i)] = static_cast<float>(f);
  }

  decoder->rows_ = std::make_unique<DecoderRows>(
      decoder->weights(),
      compute == ComputeType::kF32 ? ActivationType::kF32 : FastestActivations(BestIsa()),
      decoder->inv_freq_, pool);

  if (compute == ComputeType::kBf16 && path == ChunkPath::kBest && DecoderChunks::Supported(c)) {
    decoder->chunks_ =
        std::make_unique<DecoderChunks>(decoder->weights(), decoder->inv_freq_, kChunkTokens, pool);
  } else if (absl::Status s = decoder->CreateChunk(); !s.ok()) {
    return s;
  }
  return decoder;
}

absl::Status Decoder::CreateChunk() {
  return CatchTorch("the allocation of scratch", 0, [&] {
    chunk_ = std::make_unique<Chunk>();
    Chunk& s = *chunk_;
    const ModelConfig& c = config();
    const int64_t q_width = static_cast<int64_t>(c.heads) * c.head_dim;
    const int64_t qkv_width = q_width + 2 * static_cast<int64_t>(c.kv_heads) * c.head_dim;
    s.scalar = compute_ == ComputeType::kF32 ? at::kFloat : at::kBFloat16;
    const auto options = at::TensorOptions().dtype(s.scalar);
    s.w_qkv = at::empty({qkv_width, c.hidden}, options);
    s.w_o = at::empty({c.hidden, q_width}, options);
    s.w_gate_up = at::empty({2 * static_cast<int64_t>(c.ffn), c.hidden}, options);
    s.w_down = at::empty({c.hidden, c.ffn}, options);
    s.x = at::empty({kChunkTokens, c.hidden}, options);
    s.qkv = at::empty({kChunkTokens, qkv_width}, options);
    s.gate_up = at::empty({kChunkTokens, 2 * static_cast<int64_t>(c.ffn)}, options);
    s.activated = at::empty({kChunkTokens, c.ffn}, options);
    s.projected = at::empty({kChunkTokens, c.hidden}, options);
  });
}

void Decoder::Embed(absl::Span<const int32_t> tokens, float* hidden) const {
  const int64_t width = config().hidden;
  for (size_t i = 0; i < tokens.size(); ++i) {
    ExpandRows(weights_->embedding(), tokens[i], tokens[i] + 1,
               hidden + static_cast<int64_t>(i) * width);
  }
}

void Decoder::ExpandLayer(int layer) {
  if (chunks_ != nullptr) {
    chunks_->ExpandLayer(layer);
  } else {
    ExpandChunkLayer(layer);
  }
}

absl::Status Decoder::ProjectQkv(int layer, const float* hidden, int tokens, int64_t first_position,
                                 void* q, void* k, void* v, int64_t kv_head_stride) {
  if (chunks_ == nullptr) {
    return ProjectQkvByLibTorch(layer, hidden, tokens, first_position, q, k, v, kv_head_stride);
  }
  chunks_->ProjectQkv(layer, hidden, tokens, first_position, static_cast<uint16_t*>(q),
                      static_cast<uint16_t*>(k), static_cast<uint16_t*>(v), kv_head_stride);
  return absl::OkStatus();
}

absl::Status Decoder::Finish(int layer, const void* attention, int tokens, float* hidden) {
  if (chunks_ == nullptr) return FinishByLibTorch(layer, attention, tokens, hidden);
  chunks_->Finish(layer, static_cast<const uint16_t*>(attention), tokens, hidden);
  return absl::OkStatus();
}

void Decoder::ChunkLogits(const float* hidden, int tokens, float* logits) {
  if (chunks_ == nullptr) {
    Logits(hidden, tokens, logits);
  } else {
    chunks_->Logits(hidden, tokens, logits);
  }
}

void Decoder::ExpandChunkLayer(int layer) {
  Chunk& s = *chunk_;
  if (s.layer == layer) return;
  UseThreads(pool_->threads());
  const LayerWeights& w = weights_->layer(layer);
  ExpandInto(w.wq, s.w_qkv, 0);
  ExpandInto(w.wk, s.w_qkv, w.wq.rows);
  ExpandInto(w.wv, s.w_qkv, w.wq.rows + w.wk.rows);
  ExpandInto(w.wo, s.w_o, 0);
  ExpandInto(w.w_gate, s.w_gate_up, 0);
  ExpandInto(w.w_up, s.w_gate_up, w.w_gate.rows);
  ExpandInto(w.w_down, s.w_down, 0);
  s.layer = layer;
}

absl::Status Decoder::ProjectQkvByLibTorch(int layer, const float* hidden, int tokens,
                                           int64_t first_position, void* q, void* k, void* v,
                                           int64_t kv_head_stride) {
  return CatchTorch("the attention input", layer, [&] {
    Chunk& s = *chunk_;
    UseThreads(pool_->threads());
    const ModelConfig& c = config();
    const int64_t d = c.head_dim;
    const int64_t q_width = c.heads * d;
    const int64_t kv_width = c.kv_heads * d;
    const int64_t qkv_width = q_width + 2 * kv_width;
    const LayerWeights& w = weights_->layer(layer);
    const float epsilon = static_cast<float>(c.rms_epsilon);
    const int padded = PaddedTokens(tokens);
    ZeroRows(s.x, tokens, padded, c.hidden);
    at::parallel_for(0, tokens, 8, [&](int64_t begin, int64_t end) {
      std::vector<float> row(static_cast<size_t>(c.hidden));
      for (int64_t t = begin; t < end; ++t) {
        RmsNorm(hidden + t * c.hidden, w.attention_norm.data(), c.hidden, epsilon, row.data(), 0,
                1);
        StoreValues(row.data(), c.hidden, s.scalar, s.x.data_ptr(), t * c.hidden);
      }
    });
    Multiply(s.x, s.w_qkv, padded, s.qkv);
    at::parallel_for(0, tokens, 8, [&](int64_t begin, int64_t end) {
      std::vector<float> buffer(static_cast<size_t>(qkv_width));
      std::vector<float> rotated(static_cast<size_t>(q_width + kv_width));
      std::vector<float> cosines(static_cast<size_t>(d / 2)), sines(static_cast<size_t>(d / 2));
      for (int64_t t = begin; t < end; ++t) {
        const float* row = LoadRow(s.qkv, t, qkv_width, buffer.data());
        RopeAngles(first_position + t, inv_freq_.data(), c.head_dim / 2, cosines.data(),
                   sines.data());
        std::copy_n(row, q_width + kv_width, rotated.data());
        Rope(rotated.data(), c.heads + c.kv_heads, c.head_dim, cosines.data(), sines.data());
        StoreValues(rotated.data(), q_width, s.scalar, q, t * q_width);
        for (int h = 0; h < c.kv_heads; ++h) {
          const int64_t target = h * kv_head_stride + t * d;
          StoreValues(rotated.data() + q_width + h * d, d, s.scalar, k, target);
          StoreValues(row + q_width + kv_width + h * d, d, s.scalar, v, target);
        }
      }
    });
  });
}

absl::Status Decoder::FinishByLibTorch(int layer, const void* attention, int tokens,
                                       float* hidden) {
  return CatchTorch("the attention output or feed-forward part", layer, [&] {
    Chunk& s = *chunk_;
    UseThreads(pool_->threads());
    const ModelConfig& c = config();
    const int64_t q_width = static_cast<int64_t>(c.heads) * c.head_dim;
    const LayerWeights& w = weights_->layer(layer);
    const float epsilon = static_cast<float>(c.rms_epsilon);
    const int padded = PaddedTokens(tokens);

    // The attention rows, padded: copied only where the caller's buffer ends early.
    at::Tensor input = at::from_blob(const_cast<void*>(attention), {tokens, q_width},
                                     at::TensorOptions().dtype(s.scalar));
    if (padded != tokens) {
      at::Tensor copy = at::zeros({padded, q_width}, at::TensorOptions().dtype(s.scalar));
      copy.narrow(0, 0, tokens).copy_(input);
      input = copy;
    }
    Multiply(input, s.w_o, padded, s.projected);
    ZeroRows(s.x, tokens, padded, c.hidden);
    at::parallel_for(0, tokens, 8, [&](int64_t begin, int64_t end) {
      std::vector<float> buffer(static_cast<size_t>(c.hidden));
      for (int64_t t = begin; t < end; ++t) {
        float* h = hidden + t * c.hidden;
        const float* row = LoadRow(s.projected, t, c.hidden, buffer.data());
        for (int64_t i = 0; i < c.hidden; ++i) h[i] += row[i];
        RmsNorm(h, w.ffn_norm.data(), c.hidden, epsilon, buffer.data(), 0, 1);
        StoreValues(buffer.data(), c.hidden, s.scalar, s.x.data_ptr(), t * c.hidden);
      }
    });
    Multiply(s.x, s.w_gate_up, padded, s.gate_up);
    ZeroRows(s.activated, tokens, padded, c.ffn);
    at::parallel_for(0, tokens, 8, [&](int64_t begin, int64_t end) {
      std::vector<float> buffer(2 * static_cast<size_t>(c.ffn));
      std::vector<float> out(static_cast<size_t>(c.ffn));
      for (int64_t t = begin; t < end; ++t) {
        const float* row = LoadRow(s.gate_up, t, 2 * static_cast<int64_t>(c.ffn), buffer.data());
        SwiGlu(row, row + c.ffn, c.ffn, out.data());
        StoreValues(out.data(), c.ffn, s.scalar, s.activated.data_ptr(), t * c.ffn);
      }
    });
    Multiply(s.activated, s.w_down, padded, s.projected);
    at::parallel_for(0, tokens, 8, [&](int64_t begin, int64_t end) {
      std::vector<float> buffer(static_cast<size_t>(c.hidden));
      for (int64_t t = begin; t < end; ++t) {
        float* h = hidden + t * c.hidden;
        const float* row = LoadRow(s.projected, t, c.hidden, buffer.data());
        for (int64_t i = 0; i < c.hidden; ++i) h[i] += row[i];
      }
    });
  });
}

}  // namespace ripplekv
