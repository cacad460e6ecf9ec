// What a sensitivity profile costs, as a multiple of the plain prefix passes over the same
// examples.
//
//   ripplekv-bench-probe-cost MODEL fp32|bf16 THREADS [EXAMPLES [ROUNDS [DAMAGE]]]
//
// DAMAGE: of the examples, those that carry the curves and storage types as well (default 0).
// Prints one ratio a round and their median. Both sides run alternately in one process, so a slow
// or busy machine slows both. The plain side is the least that a prefill does: embed, then every
// layer over the whole prefix in chunks, without logits or compaction. Token ids are pseudo-random:
// the time does not depend on them.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "calibration/probe.h"
#include "kernels/thread_pool.h"
#include "model/chunk_attention.h"
#include "model/decoder.h"
#include "model/load_decoder.h"

namespace ripplekv {
namespace {

using Clock = std::chrono::steady_clock;

int Fail(const std::string& message) {
  std::cerr << "ripplekv-bench-probe-cost: " << message << "\n";
  return 1;
}

absl::Status PrefixPass(Decoder& decoder, absl::Span<const int32_t> tokens) {
  const ModelConfig& c = decoder.config();
  const int64_t total = static_cast<int64_t>(tokens.size());
  const int64_t stride = total * c.head_dim;
  const size_t element = KvTypeBytes(decoder.kv_type());
  const size_t chunk_elements =
      static_cast<size_t>(Decoder::kChunkTokens) * static_cast<size_t>(c.heads * c.head_dim);
  std::vector<std::byte> k(static_cast<size_t>(c.kv_heads * stride) * element), v(k.size());
  std::vector<std::byte> q(chunk_elements * element), attention(q.size());
  std::vector<float> hidden(static_cast<size_t>(total) * static_cast<size_t>(c.hidden));
  decoder.Embed(tokens, hidden.data());
  for (int l = 0; l < c.layers; ++l) {
    decoder.ExpandLayer(l);
    for (int64_t t = 0; t < total; t += Decoder::kChunkTokens) {
      const int n = static_cast<int>(std::min<int64_t>(Decoder::kChunkTokens, total - t));
      float* const h = hidden.data() + t * c.hidden;
      const size_t at = static_cast<size_t>(t * c.head_dim) * element;
      absl::Status s =
          decoder.ProjectQkv(l, h, n, t, q.data(), k.data() + at, v.data() + at, stride);
      if (!s.ok()) return s;
      ChunkAttentionArgs args{
          decoder.kv_type(), c.heads, c.kv_heads,       c.head_dim,    n, t, q.data(), k.data(),
          v.data(),          stride,  attention.data(), decoder.pool()};
      if (s = ChunkAttention(args); !s.ok()) return s;
      if (s = decoder.Finish(l, attention.data(), n, h); !s.ok()) return s;
    }
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  if (argc < 4 || argc > 7) {
    return Fail("arguments: MODEL fp32|bf16 THREADS [EXAMPLES [ROUNDS [DAMAGE]]]");
  }
  ThreadPool pool(std::atoi(argv[3]));
  auto decoder = LoadDecoder(argv[1], argv[2], &pool);
  if (!decoder.ok()) return Fail(std::string(decoder.status().message()));

  CalibrationSettings settings;
  settings.examples = argc > 4 ? std::atoi(argv[4]) : 4;
  const int rounds = argc > 5 ? std::atoi(argv[5]) : 3;
  settings.damage_examples = argc > 6 ? std::atoi(argv[6]) : 0;
  if (settings.damage_examples > 0) {
    settings.damage_retentions = settings.DefaultDamageRetentions();
    settings.damage_storage = true;
  }
  if (settings.examples < 1 || rounds < 1) return Fail("EXAMPLES and ROUNDS must be at least 1");
  std::vector<std::vector<int32_t>> examples(static_cast<size_t>(settings.examples));
  uint32_t state = 1;
  for (auto& ids : examples) {
    for (int64_t t = 0; t < settings.example_tokens(); ++t) {
      state = state * 1664525u + 1013904223u;
      ids.push_back(
          static_cast<int32_t>((state >> 8) % static_cast<uint32_t>((*decoder)->config().vocab)));
    }
  }

  std::vector<double> ratios;
  for (int round = 0; round <= rounds; ++round) {
    const Clock::time_point start = Clock::now();
    for (const auto& ids : examples) {
      const absl::Span<const int32_t> prefix(ids.data(),
                                             static_cast<size_t>(settings.prefix_tokens));
      if (absl::Status s = PrefixPass(**decoder, prefix); !s.ok())
        return Fail(std::string(s.message()));
    }
    const Clock::time_point middle = Clock::now();
    auto probe = Probe::Create(decoder->get(), settings, examples);
    if (!probe.ok()) return Fail(std::string(probe.status().message()));
    while (!(*probe)->done()) {
      if (absl::Status s = (*probe)->Step(); !s.ok()) return Fail(std::string(s.message()));
    }
    const Clock::time_point end = Clock::now();
    if (round == 0) continue;  // warms up
    ratios.push_back(std::chrono::duration<double>(end - middle) /
                     std::chrono::duration<double>(middle - start));
    std::printf("round %d: %.2f\n", round, ratios.back());
    std::fflush(stdout);
  }
  std::sort(ratios.begin(), ratios.end());
  std::printf("profile / plain prefix passes, median: %.2f\n", ratios[ratios.size() / 2]);
  return 0;
}

}  // namespace
}  // namespace ripplekv

int main(int argc, char** argv) { return ripplekv::Main(argc, argv); }
