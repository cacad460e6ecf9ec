#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "tests/server/engine/tiny_engine.h"

namespace ripplekv {

// Byte tokens of the tiny model.
inline std::vector<int32_t> TinyTokens(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> tokens(count);
  for (int32_t& id : tokens) id = static_cast<int32_t>(random() % 256);
  return tokens;
}

inline std::vector<int32_t> Joined(std::vector<int32_t> first, const std::vector<int32_t>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// Greedy, to the last of max_tokens, with logprobs.
inline GenerateRequest TinyAsk(std::vector<int32_t> prompt, int32_t max_tokens) {
  GenerateRequest request;
  request.prompt = std::move(prompt);
  request.stopping.max_tokens = max_tokens;
  request.stopping.ignore_eos = true;
  request.logprobs = 2;
  return request;
}

// Tokens that the model does not expect: their logprobs tell far more of its state than those of
// the likeliest ones, of which it is all but certain.
inline GenerateRequest Sampled(GenerateRequest request, uint64_t seed) {
  request.sampling.temperature = 3;
  request.sampling.seed = seed;
  return request;
}

inline void ExpectCloseOutput(const Collector& a, const Collector& b, float tolerance) {
  ASSERT_TRUE(a.status().ok()) << a.status();
  ASSERT_TRUE(b.status().ok()) << b.status();
  ASSERT_EQ(a.tokens(), b.tokens());
  ASSERT_EQ(a.logprobs().size(), b.logprobs().size());
  for (size_t i = 0; i < a.logprobs().size(); ++i) {
    ASSERT_NEAR(a.logprobs()[i].logprob, b.logprobs()[i].logprob, tolerance) << "token " << i;
  }
}

// Waits for what another thread will bring about.
inline bool Eventually(const std::function<bool()>& holds) {
  for (const auto end = Clock::now() + seconds(60); Clock::now() < end;) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return holds();
}

// An arena of so many pages of the tiny model in fp32, for prompts of up to max_prompt_tokens.
inline EngineOptions TinyArena(int64_t pages, int32_t max_prompt_tokens) {
  EngineOptions options;
  const size_t row = 2 * 2 * 16 * sizeof(float);  // K and V of both KV heads
  options.max_prompt_tokens = max_prompt_tokens;
  options.kv_memory_bytes =
      static_cast<size_t>(max_prompt_tokens) * row + 64 +
      static_cast<size_t>(pages) *
          KvPageLayout::BytesForRowsPerPage(KvType::kF32, 2, 16, Engine::kRowsPerPage);
  options.context_memory_bytes = options.kv_memory_bytes;
  return options;
}

}  // namespace ripplekv
