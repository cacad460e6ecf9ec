#include "server/engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <vector>

namespace ripplekv {
namespace {

std::vector<float> RandomLogits(int vocab, uint32_t seed, float spread = 3) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(static_cast<size_t>(vocab));
  for (float& x : logits) x = normal(random);
  return logits;
}

// The distribution that sampler.h describes, written plainly: sorted lists over the whole
// vocabulary, no shortcuts.
std::vector<double> ReferenceDistribution(const SamplingParams& p, const std::vector<float>& logits,
                                          const std::vector<int32_t>& prompt,
                                          const std::vector<int32_t>& output,
                                          const std::vector<int32_t>& banned) {
  const size_t vocab = logits.size();
  std::vector<double> x(logits.begin(), logits.end());
  std::set<int32_t> seen(prompt.begin(), prompt.end());
  seen.insert(output.begin(), output.end());
  for (int32_t id : seen) {
    double& v = x[static_cast<size_t>(id)];
    v = v > 0 ? v / p.repetition_penalty : v * p.repetition_penalty;
  }
  std::map<int32_t, int> counts;
  for (int32_t id : output) ++counts[id];
  for (auto [id, n] : counts)
    x[static_cast<size_t>(id)] -= p.presence_penalty + p.frequency_penalty * n;
  for (auto [id, bias] : p.logit_bias) x[static_cast<size_t>(id)] += bias;

  std::vector<size_t> order;
  for (size_t id = 0; id < vocab; ++id) {
    if (std::find(banned.begin(), banned.end(), static_cast<int32_t>(id)) == banned.end())
      order.push_back(id);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return x[a] > x[b]; });
  std::vector<double> probability(vocab, 0.0);
  if (p.temperature == 0) {
    probability[order[0]] = 1;
    return probability;
  }
  if (p.top_k > 0 && order.size() > static_cast<size_t>(p.top_k))
    order.resize(static_cast<size_t>(p.top_k));
  auto softmax = [&] {
    std::vector<double> out;
    double sum = 0;
    for (size_t id : order) out.push_back(std::exp((x[id] - x[order[0]]) / p.temperature));
    for (double v : out) sum += v;
    for (double& v : out) v /= sum;
    return out;
  };
  std::vector<double> probs = softmax();
  double mass = 0;
  size_t keep = 0;
  while (keep < order.size()) {
    mass += probs[keep++];
    if (mass >= p.top_p) break;
  }
  if (p.top_p < 1) order.resize(keep);
  probs = softmax();
  size_t kept = 0;
  while (kept < order.size() && probs[kept] >= p.min_p * probs[0]) ++kept;
  order.resize(kept);
  probs = softmax();
  for (size_t i = 0; i < order.size(); ++i) probability[order[i]] = probs[i];
  return probability;
}

std::vector<SamplingParams> Variety() {
  std::vector<SamplingParams> all;
  std::mt19937 random(11);
  auto uniform = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  for (int i = 0; i < 60; ++i) {
    SamplingParams p;
    p.temperature = i % 7 == 0 ? 0 : uniform(0.3, 2);
    if (i % 2) p.top_k = static_cast<int32_t>(1 + random() % 80);
    if (i % 3) p.top_p = uniform(0.05, 0.999);
    if (i % 4 == 1) p.min_p = uniform(0, 0.3);
    if (i % 5 == 2) p.repetition_penalty = uniform(0.5, 2);
    if (i % 5 == 3) p.presence_penalty = uniform(-2, 2);
    if (i % 5 == 4) p.frequency_penalty = uniform(-2, 2);
    if (i % 6 == 5) p.logit_bias = {{3, 2.5f}, {70, -100.0f}, {149, 1.0f}};
    all.push_back(p);
  }
  return all;
}

TEST(SamplerTest, NeverLeavesTheReferenceSupportAndMatchesItsFrequencies) {
  const int vocab = 150;
  const int draws = 2000;
  const std::vector<int32_t> prompt = {1, 5, 5, 9, 149};
  const std::vector<int32_t> output = {5, 7, 7, 7, 20};
  const std::vector<int32_t> banned = {2, 8};
  int index = 0;
  for (const SamplingParams& p : Variety()) {
    SCOPED_TRACE(index);
    const std::vector<float> logits = RandomLogits(vocab, static_cast<uint32_t>(index++), 2);
    const std::vector<double> expected = ReferenceDistribution(p, logits, prompt, output, banned);
    std::vector<int> counts(vocab, 0);
    for (int i = 0; i < draws; ++i) {
      Sampler sampler(p, static_cast<uint64_t>(i) * 7919 + 5, vocab, prompt);
      for (int32_t id : output) sampler.Accept(id);
      const int32_t id = sampler.Sample(logits, banned);
      ASSERT_GE(id, 0);
      ASSERT_LT(id, vocab);
      ASSERT_GT(expected[static_cast<size_t>(id)], 0)
          << "token " << id << " is outside of what may be drawn";
      ++counts[static_cast<size_t>(id)];
    }
    // Chi-square over cells of at least 5 expected draws, the rest pooled. 5 sigma of the
    // chi-square distribution.
    double chi2 = 0, rest_expected = 0;
    int cells = 0, rest = 0;
    for (int id = 0; id < vocab; ++id) {
      const double e = expected[static_cast<size_t>(id)] * draws;
      if (e < 5) {
        rest_expected += e;
        rest += counts[static_cast<size_t>(id)];
        continue;
      }
      ++cells;
      chi2 += (counts[static_cast<size_t>(id)] - e) * (counts[static_cast<size_t>(id)] - e) / e;
    }
    if (rest_expected >= 1) {
      ++cells;
      chi2 += (rest - rest_expected) * (rest - rest_expected) / rest_expected;
    }
    const double freedom = std::max(1, cells - 1);
    EXPECT_LT(chi2, freedom + 5 * std::sqrt(2 * freedom) + 5);
  }
}

TEST(SamplerTest, DrawsOfOneRequestAreIndependentOverItsSteps) {
  // A fair coin over many steps of one seed: frequency and pairs of neighbours.
  SamplingParams p;
  p.temperature = 1;
  const std::vector<float> logits = {0, 0};
  Sampler sampler(p, 42, 2, {});
  int ones = 0, same = 0, last = 0;
  const int steps = 20000;
  for (int i = 0; i < steps; ++i) {
    const int32_t id = sampler.Sample(logits, {});
    sampler.Accept(id);
    ones += id;
    same += i > 0 && id == last;
    last = id;
  }
  const double sigma = std::sqrt(steps) / 2;
  EXPECT_NEAR(ones, steps / 2.0, 5 * sigma);
  EXPECT_NEAR(same, steps / 2.0, 5 * sigma);
}

TEST(SamplerTest, ADrawDependsOnSeedAndStepOnly) {
  SamplingParams p;
  p.temperature = 1.3;
  p.top_p = 0.9;
  const int vocab = 500;
  std::vector<int32_t> first, again, other;
  for (auto [seed, out] :
       {std::pair{uint64_t{1}, &first}, {uint64_t{1}, &again}, {uint64_t{2}, &other}}) {
    Sampler sampler(p, seed, vocab, {});
    for (uint32_t step = 0; step < 50; ++step) {
      out->push_back(sampler.Sample(RandomLogits(vocab, step), {}));
      sampler.Accept(out->back());
    }
  }
  EXPECT_EQ(first, again);
  EXPECT_NE(first, other);
}

TEST(SamplerTest, GreedyTakesTheHighestAndTheLowerIdOfEquals) {
  SamplingParams p;
  std::vector<float> logits = {1, 5, 5, 2};
  EXPECT_EQ(Sampler(p, 0, 4, {}).Sample(logits, {}), 1);
  EXPECT_EQ(Sampler(p, 0, 4, {}).Sample(logits, {1}), 2);
  p.logit_bias = {{0, 4.5f}};
  EXPECT_EQ(Sampler(p, 0, 4, {}).Sample(logits, {}), 0);
}

TEST(SamplerTest, TopPSortsBeyondItsFirstHead) {
  // A flat distribution over 10,000 tokens: 95 % of it is 9,500 tokens, the lowest ids.
  SamplingParams p;
  p.temperature = 1;
  p.top_p = 0.95;
  const std::vector<float> logits(10000, 0.5f);
  int32_t highest = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    highest = std::max(highest, Sampler(p, seed, 10000, {}).Sample(logits, {}));
  }
  EXPECT_LE(highest, 9500);
  EXPECT_GT(highest, 9300);
}

TEST(SamplerTest, ExtremeTemperaturesStayFinite) {
  const std::vector<float> logits = {10, 20, -30};
  SamplingParams p;
  p.temperature = 1e-300;
  p.top_p = 0.5;
  for (uint64_t seed = 0; seed < 20; ++seed)
    EXPECT_EQ(Sampler(p, seed, 3, {}).Sample(logits, {}), 1);
}

TEST(LogprobsTest, EqualsAPlainLogSoftmaxAndSort) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const std::vector<float> logits = RandomLogits(1000, seed, 5);
    long double sum = 0;
    for (float x : logits) sum += std::exp(static_cast<long double>(x));
    const auto token = static_cast<int32_t>(seed * 37 % 1000);
    const TokenLogprob result = Logprobs(logits, token, 20);
    EXPECT_EQ(result.token, token);
    EXPECT_NEAR(result.logprob,
                logits[static_cast<size_t>(token)] - static_cast<double>(std::log(sum)), 1e-5);
    std::vector<int32_t> order(1000);
    for (int32_t i = 0; i < 1000; ++i) order[static_cast<size_t>(i)] = i;
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    ASSERT_EQ(result.top.size(), 20u);
    for (size_t i = 0; i < 20; ++i) {
      EXPECT_EQ(result.top[i].first, order[i]);
      EXPECT_NEAR(result.top[i].second,
                  logits[static_cast<size_t>(order[i])] - static_cast<double>(std::log(sum)), 1e-5);
    }
  }
}

TEST(LogprobsTest, TiesGoToTheLowerIdAndTopMayExceedTheVocabulary) {
  const TokenLogprob result = Logprobs({1, 2, 2, 2}, 0, 3);
  ASSERT_EQ(result.top.size(), 3u);
  EXPECT_EQ(result.top[0].first, 1);
  EXPECT_EQ(result.top[1].first, 2);
  EXPECT_EQ(result.top[2].first, 3);
  EXPECT_EQ(Logprobs({1, 2}, 0, 20).top.size(), 2u);
  EXPECT_TRUE(Logprobs({1, 2}, 0, 0).top.empty());
}

}  // namespace
}  // namespace ripplekv
