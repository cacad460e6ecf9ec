#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/thread_pool.h"
#include "model/decoder.h"
#include "tests/model/tiny_llama.h"

namespace ripplekv {

/// A small model with random weights.
struct TinyDecoder {
  explicit TinyDecoder(ComputeType compute, int threads = 1, TinyLlamaOptions options = {})
      : pool(threads) {
    const std::vector<std::byte> bytes = TinyLlama(options).Build();
    auto file = GgufFile::Parse(bytes);
    EXPECT_TRUE(file.ok()) << file.status();
    auto config = ModelConfig::FromGguf(*file);
    EXPECT_TRUE(config.ok()) << config.status();
    auto weights = Weights::Load(*file, *config);
    EXPECT_TRUE(weights.ok()) << weights.status();
    auto made = Decoder::Create(*weights, compute, &pool);
    EXPECT_TRUE(made.ok()) << made.status();
    decoder = *std::move(made);
  }
  ThreadPool pool;
  std::unique_ptr<Decoder> decoder;
};

/// Lists of tokens 0 to 255 that look random.
inline std::vector<std::vector<int32_t>> RandomTokens(int lists, int64_t tokens) {
  std::vector<std::vector<int32_t>> all;
  uint32_t state = 1;
  for (int e = 0; e < lists; ++e) {
    all.emplace_back();
    for (int64_t t = 0; t < tokens; ++t) {
      state = state * 1664525u + 1013904223u;
      all.back().push_back(static_cast<int32_t>(state >> 24));
    }
  }
  return all;
}

}  // namespace ripplekv
