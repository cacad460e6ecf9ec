// Every selector against the plain reading of its formula in double precision.

#include "calibration/row_selector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "kernels/bf16.h"

namespace ripplekv {
namespace {

constexpr int kHeads = 6;
constexpr int kKvHeads = 2;
constexpr int kHeadDim = 16;
constexpr int kSinks = 3;

ModelConfig Config() {
  ModelConfig config;
  config.heads = kHeads;
  config.kv_heads = kKvHeads;
  config.head_dim = kHeadDim;
  return config;
}

// One layer of a prompt: queries [T, heads, d] and keys [kv_heads, T, d].
struct Layer {
  int64_t tokens;
  std::vector<float> q, k;

  Layer(int64_t tokens, uint32_t seed) : tokens(tokens) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    q.resize(static_cast<size_t>(tokens * kHeads * kHeadDim));
    k.resize(static_cast<size_t>(tokens * kKvHeads * kHeadDim));
    for (float& x : q) x = normal(random);
    for (float& x : k) x = normal(random);
  }
};

// [heads][T][T]: softmax attention, causal.
using Attention = std::vector<std::vector<std::vector<double>>>;

Attention SlowAttention(const Layer& layer) {
  const auto t_count = static_cast<size_t>(layer.tokens);
  Attention all(kHeads, std::vector<std::vector<double>>(t_count, std::vector<double>(t_count)));
  for (size_t h = 0; h < kHeads; ++h) {
    const float* keys = layer.k.data() + h / (kHeads / kKvHeads) * t_count * kHeadDim;
    for (size_t t = 0; t < t_count; ++t) {
      const float* query = layer.q.data() + (t * kHeads + h) * kHeadDim;
      double sum = 0;
      for (size_t u = 0; u <= t; ++u) {
        double dot = 0;
        for (size_t i = 0; i < kHeadDim; ++i) dot += double{query[i]} * keys[u * kHeadDim + i];
        all[h][t][u] = std::exp(dot / std::sqrt(double{kHeadDim}));
        sum += all[h][t][u];
      }
      for (size_t u = 0; u <= t; ++u) all[h][t][u] /= sum;
    }
  }
  return all;
}

std::vector<double> Pooled(const std::vector<double>& x, Pooling pooling, int kernel) {
  if (pooling == Pooling::kNone) return x;
  std::vector<double> out(x.size());
  const auto n = static_cast<int64_t>(x.size());
  for (int64_t u = 0; u < n; ++u) {
    double sum = 0, high = 0;
    for (int64_t i = std::max<int64_t>(0, u - kernel / 2); i <= std::min(n - 1, u + kernel / 2);
         ++i) {
      sum += x[static_cast<size_t>(i)];
      high = std::max(high, x[static_cast<size_t>(i)]);
    }
    out[static_cast<size_t>(u)] = pooling == Pooling::kMax ? high : sum / kernel;
  }
  return out;
}

// [scored] of one KV head: `queries` vote.
std::vector<double> SlowCount(const Attention& attention, int kv_head,
                              const std::vector<int64_t>& queries, bool normalised, int64_t scored,
                              Pooling pooling, int kernel) {
  std::vector<double> mean(static_cast<size_t>(scored));
  for (int g = 0; g < kHeads / kKvHeads; ++g) {
    const auto& a = attention[static_cast<size_t>(kv_head * (kHeads / kKvHeads) + g)];
    std::vector<double> sums(static_cast<size_t>(scored));
    for (int64_t u = 0; u < scored; ++u) {
      int count = 0;
      for (const int64_t t : queries) {
        if (t < u) continue;
        sums[static_cast<size_t>(u)] += a[static_cast<size_t>(t)][static_cast<size_t>(u)];
        ++count;
      }
      if (normalised && count > 0) sums[static_cast<size_t>(u)] /= count;
    }
    sums = Pooled(sums, pooling, kernel);
    for (size_t u = 0; u < sums.size(); ++u) mean[u] += sums[u] / (kHeads / kKvHeads);
  }
  return mean;
}

std::vector<int64_t> Last(int64_t n, int64_t tokens) {
  std::vector<int64_t> out;
  for (int64_t t = std::max<int64_t>(0, tokens - n); t < tokens; ++t) out.push_back(t);
  return out;
}

// n queries that end n equal parts of the prompt.
std::vector<int64_t> Strided(int64_t n, int64_t tokens) {
  n = std::min(n, tokens);
  std::vector<int64_t> out;
  for (int64_t i = 1; i <= n; ++i) {
    out.push_back(
        static_cast<int64_t>(std::floor(static_cast<double>(i * tokens) / static_cast<double>(n))) -
        1);
  }
  return out;
}

std::vector<double> SlowScores(const SelectorSpec& selector, const Attention& attention,
                               int kv_head, int64_t tokens) {
  const int64_t scored = tokens - SelectorWindow(selector);
  const auto snapkv = [&](const SnapKv& s) {
    return SlowCount(attention, kv_head, Last(s.window, tokens), true, scored, s.pooling, s.kernel);
  };
  if (const auto* s = std::get_if<SnapKv>(&selector)) return snapkv(*s);
  if (const auto* s = std::get_if<H2o>(&selector)) {
    return SlowCount(attention, kv_head, Strided(s->queries, tokens), s->normalised, scored,
                     Pooling::kNone, 1);
  }
  if (const auto* s = std::get_if<RecentAttention>(&selector)) {
    return SlowCount(attention, kv_head, Last(s->queries, tokens), true, scored, s->pooling,
                     s->kernel);
  }
  const auto& mixed = std::get<MixedAttention>(selector);
  std::vector<double> a = snapkv(mixed.snapkv);
  const std::vector<double> b =
      SlowCount(attention, kv_head, Last(mixed.queries, tokens), true, scored, Pooling::kNone, 1);
  double sum_a = 0, sum_b = 0;
  for (size_t u = kSinks; u < a.size(); ++u) sum_a += a[u], sum_b += b[u];
  for (size_t u = 0; u < a.size(); ++u) {
    a[u] = mixed.weight * a[u] / sum_a + (1 - mixed.weight) * b[u] / sum_b;
  }
  return a;
}

// As a prefill hands the layer over, in chunks of so many tokens.
std::vector<int32_t> Choose(const SelectorSpec& selector, const Layer& layer, int layer_index,
                            int64_t budget, int chunk, ThreadPool* pool) {
  const ModelConfig config = Config();
  RowSelector rows(selector, kSinks, config, KvType::kF32, layer.tokens, pool);
  for (int64_t t = 0; t < layer.tokens; t += chunk) {
    const int n = static_cast<int>(std::min<int64_t>(chunk, layer.tokens - t));
    rows.TakeQueries(t, n, layer.q.data() + t * kHeads * kHeadDim);
  }
  rows.Score(layer.k.data(), layer.tokens * kHeadDim);
  auto indices = rows.Choose(layer_index, budget);
  EXPECT_TRUE(indices.ok()) << indices.status();
  return indices.ok() ? *indices : std::vector<int32_t>();
}

const std::vector<SelectorSpec> kScoring = {
    SnapKv{8, 5, Pooling::kMax},
    SnapKv{16, 3, Pooling::kMean},
    SnapKv{1, 7, Pooling::kNone},
    H2o{8, 40, false},
    H2o{8, 40, true},
    H2o{8, 512, false},
    H2o{8, 512, true},
    H2o{8, 1, false},
    RecentAttention{8, 64, 7, Pooling::kNone},
    RecentAttention{8, 64, 5, Pooling::kMax},
    RecentAttention{8, 512, 5, Pooling::kMean},
    RecentAttention{16, 4, 3, Pooling::kNone},  // fewer queries than protected positions
    MixedAttention{{8, 5, Pooling::kMax}, 64, 0.5},
    MixedAttention{{8, 5, Pooling::kMean}, 64, 0.9},
    MixedAttention{{16, 5, Pooling::kMax}, 4, 0.25},
    MixedAttention{{8, 5, Pooling::kMax}, 64, 0},
};

std::string Name(const SelectorSpec& selector) {
  return SelectorName(selector) + " of window " + std::to_string(SelectorWindow(selector));
}

TEST(RowSelectorTest, KeepsTheBestByThePlainFormula) {
  ThreadPool pool(2);
  for (const int64_t tokens : {40, 97, 300}) {
    const Layer layer(tokens, static_cast<uint32_t>(tokens));
    const Attention attention = SlowAttention(layer);
    for (size_t s = 0; s < kScoring.size(); ++s) {
      const SelectorSpec& selector = kScoring[s];
      SCOPED_TRACE(Name(selector) + ", case " + std::to_string(s));
      const int64_t budget = kSinks + SelectorWindow(selector) + (tokens - 20) / 4;
      if (budget >= tokens) continue;
      const std::vector<int32_t> indices = Choose(selector, layer, 0, budget, 7, &pool);
      ASSERT_EQ(static_cast<int64_t>(indices.size()), kKvHeads * budget);
      for (int h = 0; h < kKvHeads; ++h) {
        const std::vector<double> scores = SlowScores(selector, attention, h, tokens);
        const std::set<int32_t> kept(indices.begin() + h * budget,
                                     indices.begin() + (h + 1) * budget);
        ASSERT_EQ(static_cast<int64_t>(kept.size()), budget);
        double worst_kept = std::numeric_limits<double>::infinity(), best_dropped = 0;
        for (int64_t u = 0; u < tokens; ++u) {
          const bool is_kept = kept.contains(static_cast<int32_t>(u));
          if (u < kSinks || u >= tokens - SelectorWindow(selector)) {
            EXPECT_TRUE(is_kept) << "protected position " << u;
          } else if (is_kept) {
            worst_kept = std::min(worst_kept, scores[static_cast<size_t>(u)]);
          } else {
            best_dropped = std::max(best_dropped, scores[static_cast<size_t>(u)]);
          }
        }
        EXPECT_GE(worst_kept, best_dropped * (1 - 1e-5));
        EXPECT_GT(best_dropped, 0);
      }
    }
  }
}

TEST(RowSelectorTest, NeitherChunksNorThreadsMatter) {
  const Layer layer(300, 5);
  ThreadPool one(1), three(3);
  std::vector<SelectorSpec> all = kScoring;
  all.insert(all.end(), {StreamingLlm{8}, RandomPositions{8, 3}});
  for (const SelectorSpec& selector : all) {
    SCOPED_TRACE(Name(selector));
    const auto whole = Choose(selector, layer, 2, 90, 300, &one);
    EXPECT_EQ(Choose(selector, layer, 2, 90, 1, &one), whole);
    EXPECT_EQ(Choose(selector, layer, 2, 90, 256, &three), whole);
    EXPECT_EQ(Choose(selector, layer, 2, 90, 37, nullptr), whole);
  }
}

TEST(RowSelectorTest, StreamingKeepsSinksAndTheMostRecent) {
  const Layer layer(100, 6);
  const auto indices = Choose(StreamingLlm{8}, layer, 0, 30, 64, nullptr);
  for (int h = 0; h < kKvHeads; ++h) {
    for (int i = 0; i < 30; ++i) {
      EXPECT_EQ(indices[static_cast<size_t>(h * 30 + i)], i < kSinks ? i : 70 + i);
    }
  }
}

// The draw is that of the seed, layer and KV head, whatever the prompt says.
TEST(RowSelectorTest, RandomDependsOnSeedLayerAndHeadOnly) {
  const auto drawn = Choose(RandomPositions{8, 1}, Layer(200, 7), 0, 60, 64, nullptr);
  EXPECT_EQ(Choose(RandomPositions{8, 1}, Layer(200, 8), 0, 60, 64, nullptr), drawn);
  EXPECT_NE(Choose(RandomPositions{8, 2}, Layer(200, 7), 0, 60, 64, nullptr), drawn);
  EXPECT_NE(Choose(RandomPositions{8, 1}, Layer(200, 7), 1, 60, 64, nullptr), drawn);
  EXPECT_NE(std::vector<int32_t>(drawn.begin(), drawn.begin() + 60),
            std::vector<int32_t>(drawn.begin() + 60, drawn.end()));
}

TEST(RowSelectorTest, WorkBytesCoverWhatItHolds) {
  // Queries, scores of heads and KV heads (twice where two are mixed): the rest is the kernel's.
  const ModelConfig config = Config();
  const auto bytes = [&](const SelectorSpec& selector) {
    return RowSelector::WorkBytes(selector, config, KvType::kBf16, 1000, 2);
  };
  EXPECT_EQ(bytes(StreamingLlm{8}), 992u * kKvHeads * 4);
  EXPECT_GE(bytes(H2o{8, 256, false}),
            992u * (kHeads + kKvHeads) * 4 + 256u * kHeads * kHeadDim * 2);
  EXPECT_GT(bytes(H2o{8, 256, false}), bytes(SnapKv{8, 5, Pooling::kMax}));
  EXPECT_EQ(bytes(MixedAttention{{8, 5, Pooling::kMax}, 256, 0.5}),
            bytes(RecentAttention{8, 256, 7, Pooling::kNone}) + 992u * kKvHeads * 4);
  EXPECT_EQ(RowSelector::WorkBytes(H2o{}, config, KvType::kBf16, 20, 2), 0u) << "nothing to choose";
}

}  // namespace
}  // namespace ripplekv
