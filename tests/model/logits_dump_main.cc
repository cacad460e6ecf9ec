// Writes a checkpoint's logits at every position of a token sequence, for comparison with an
// independent implementation: plain prefill over a full cache, no compression, no server.
//
//   ripplekv-logits-dump MODEL fp32|bf16 chunk|rows THREADS TOKENS.i32 LOGITS.f32
//
// chunk: the chunk path in chunks at fixed positions; rows: one token at a time by the rows path.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "kernels/bf16.h"
#include "model/chunk_attention.h"
#include "model/decoder.h"
#include "model/load_decoder.h"

namespace ripplekv {
namespace {

/// Attention of one fp32 query row over `rows` contiguous fp32 rows per KV head, plainly.
void PlainAttention(const ModelConfig& c, const float* q, const std::vector<float>& k,
                    const std::vector<float>& v, int64_t rows, int64_t stride, float* out) {
  const int d = c.head_dim;
  std::vector<double> p(static_cast<size_t>(rows));
  for (int h = 0; h < c.heads; ++h) {
    const int64_t base = h / (c.heads / c.kv_heads) * stride;
    double top = -1e300;
    for (int64_t r = 0; r < rows; ++r) {
      double s = 0;
      for (int i = 0; i < d; ++i)
        s += static_cast<double>(q[h * d + i]) * k[static_cast<size_t>(base + r * d + i)];
      p[static_cast<size_t>(r)] = s / std::sqrt(static_cast<double>(d));
      top = std::max(top, p[static_cast<size_t>(r)]);
    }
    double sum = 0;
    for (double& x : p) sum += x = std::exp(x - top);
    for (int i = 0; i < d; ++i) {
      double o = 0;
      for (int64_t r = 0; r < rows; ++r)
        o += p[static_cast<size_t>(r)] * v[static_cast<size_t>(base + r * d + i)];
      out[h * d + i] = static_cast<float>(o / sum);
    }
  }
}

absl::Status Chunked(Decoder& decoder, const std::vector<int32_t>& tokens,
                     std::vector<float>& hidden) {
  const ModelConfig& c = decoder.config();
  const int64_t total = static_cast<int64_t>(tokens.size());
  const int64_t stride = total * c.head_dim;
  const size_t element = KvTypeBytes(decoder.kv_type());
  const size_t q_bytes =
      static_cast<size_t>(Decoder::kChunkTokens * c.heads * c.head_dim) * element;
  std::vector<std::byte> k(static_cast<size_t>(c.kv_heads * stride) * element), v(k.size()),
      q(q_bytes), a(q_bytes);
  decoder.Embed(tokens, hidden.data());
  for (int l = 0; l < c.layers; ++l) {
    decoder.ExpandLayer(l);
    for (int64_t t = 0; t < total; t += Decoder::kChunkTokens) {
      const int n = static_cast<int>(std::min<int64_t>(Decoder::kChunkTokens, total - t));
      float* h = hidden.data() + t * c.hidden;
      const size_t at = static_cast<size_t>(t * c.head_dim) * element;
      absl::Status s =
          decoder.ProjectQkv(l, h, n, t, q.data(), k.data() + at, v.data() + at, stride);
      if (!s.ok()) return s;
      ChunkAttentionArgs args{
          decoder.kv_type(), c.heads,  c.kv_heads, c.head_dim, n,        t,
          q.data(),          k.data(), v.data(),   stride,     a.data(), decoder.pool()};
      if (s = ChunkAttention(args); !s.ok()) return s;
      if (s = decoder.Finish(l, a.data(), n, h); !s.ok()) return s;
    }
  }
  return absl::OkStatus();
}

void RowByRow(Decoder& decoder, const std::vector<int32_t>& tokens, std::vector<float>& hidden) {
  const ModelConfig& c = decoder.config();
  const int64_t total = static_cast<int64_t>(tokens.size());
  const int64_t stride = total * c.head_dim;
  const size_t layer_size = static_cast<size_t>(c.kv_heads * stride);
  std::vector<std::vector<float>> k(static_cast<size_t>(c.layers), std::vector<float>(layer_size)),
      v(k);
  std::vector<float> q(static_cast<size_t>(c.heads * c.head_dim)), a(q.size());
  std::vector<float> new_k(static_cast<size_t>(c.kv_heads * c.head_dim)), new_v(new_k.size());
  for (int64_t t = 0; t < total; ++t) {
    float* h = hidden.data() + t * c.hidden;
    const int32_t position = static_cast<int32_t>(t);
    decoder.Embed({tokens.data() + t, 1}, h);
    for (int l = 0; l < c.layers; ++l) {
      decoder.ProjectQkvRows(l, h, 1, &position, q.data(), new_k.data(), new_v.data());
      auto& lk = k[static_cast<size_t>(l)];
      auto& lv = v[static_cast<size_t>(l)];
      for (int g = 0; g < c.kv_heads; ++g) {
        std::copy_n(new_k.data() + g * c.head_dim, c.head_dim,
                    lk.data() + g * stride + t * c.head_dim);
        std::copy_n(new_v.data() + g * c.head_dim, c.head_dim,
                    lv.data() + g * stride + t * c.head_dim);
      }
      PlainAttention(c, q.data(), lk, lv, t + 1, stride, a.data());
      decoder.FinishRows(l, a.data(), 1, h);
    }
  }
}

int Fail(const std::string& message) {
  std::cerr << "ripplekv-logits-dump: " << message << "\n";
  return 1;
}

int Main(int argc, char** argv) {
  if (argc != 7) return Fail("arguments: MODEL fp32|bf16 chunk|rows THREADS TOKENS.i32 LOGITS.f32");
  ThreadPool pool(std::atoi(argv[4]));
  auto decoder = LoadDecoder(argv[1], argv[2], &pool);
  if (!decoder.ok()) return Fail(std::string(decoder.status().message()));

  std::ifstream in(argv[5], std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(in),
                                std::istreambuf_iterator<char>()};
  std::vector<int32_t> tokens(bytes.size() / sizeof(int32_t));
  std::memcpy(tokens.data(), bytes.data(), tokens.size() * sizeof(int32_t));
  for (int32_t t : tokens) {
    if (t < 0 || t >= (*decoder)->config().vocab) return Fail("token id out of range");
  }

  std::vector<float> hidden(tokens.size() * static_cast<size_t>((*decoder)->config().hidden));
  if (std::string_view(argv[3]) == "rows") {
    RowByRow(**decoder, tokens, hidden);
  } else if (absl::Status s = Chunked(**decoder, tokens, hidden); !s.ok()) {
    return Fail(std::string(s.message()));
  }
  std::vector<float> logits(tokens.size() * static_cast<size_t>((*decoder)->config().vocab));
  (*decoder)->Logits(hidden.data(), static_cast<int>(tokens.size()), logits.data());
  std::ofstream out(argv[6], std::ios::binary);
  out.write(reinterpret_cast<const char*>(logits.data()),
            static_cast<std::streamsize>(logits.size() * sizeof(float)));
  if (!out.flush()) return Fail(std::string("cannot write ") + argv[6]);
  return 0;
}

}  // namespace
}  // namespace ripplekv

int main(int argc, char** argv) { return ripplekv::Main(argc, argv); }
