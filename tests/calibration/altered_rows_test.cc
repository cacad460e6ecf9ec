#include "calibration/altered_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/bf16.h"
#include "tests/kernels/hadamard_matrix.h"

namespace ripplekv {
namespace {

constexpr int kHeads = 4, kKvHeads = 2, kHeadDim = 32, kPrefix = 90, kRows = 100;

/// A layer of random numbers in fp32.
struct Layer {
  Layer() : k(kKvHeads * kRows * kHeadDim), v(k.size()), q(32 * kHeads * kHeadDim) {
    uint32_t state = 1;
    for (std::vector<float>* values : {&k, &v, &q}) {
      for (float& value : *values) {
        state = state * 1664525u + 1013904223u;
        value = static_cast<float>(static_cast<int32_t>(state)) * 1e-9f;
      }
    }
    rows.kv_heads = kKvHeads;
    rows.head_dim = kHeadDim;
    rows.prefix = kPrefix;
    rows.stride = kRows * kHeadDim;
    rows.k = reinterpret_cast<std::byte*>(k.data());
    rows.v = reinterpret_cast<std::byte*>(v.data());
  }
  std::vector<float> k, v, q;
  LayerRows rows;
};

ModelConfig Config() {
  ModelConfig config;
  config.heads = kHeads;
  config.kv_heads = kKvHeads;
  config.head_dim = kHeadDim;
  return config;
}

CalibrationSettings Settings() {
  CalibrationSettings settings;
  settings.prefix_tokens = kPrefix;
  settings.window_tokens = kRows - kPrefix;
  settings.damage_examples = 1;
  settings.damage_retentions = {0.5, 1 - 1e-12};
  settings.damage_storage = true;
  return settings;
}

const float* Row(const std::byte* side, int head, int64_t row) {
  return reinterpret_cast<const float*>(side) + (head * kRows + row) * kHeadDim;
}

bool Same(const float* a, const float* b) {
  return std::memcmp(a, b, kHeadDim * sizeof(float)) == 0;
}

/// SnapKV's scores in double: mean attention of the last 32 queries, the maximum over 7 positions,
/// the mean over the group.
std::vector<double> SlowScores(const Layer& layer, int kv_head) {
  const int scored = kPrefix - 32;
  std::vector<double> scores(scored);
  for (int g = 0; g < kHeads / kKvHeads; ++g) {
    const int head = kv_head * (kHeads / kKvHeads) + g;
    std::vector<double> mean(scored);
    for (int i = 0; i < 32; ++i) {
      std::vector<double> weights(scored + i + 1);
      double sum = 0;
      for (size_t u = 0; u < weights.size(); ++u) {
        double dot = 0;
        for (int d = 0; d < kHeadDim; ++d) {
          dot += double{layer.q[(i * kHeads + head) * kHeadDim + d]} *
                 Row(layer.rows.k, kv_head, static_cast<int64_t>(u))[d];
        }
        weights[u] = std::exp(dot / std::sqrt(kHeadDim));
        sum += weights[u];
      }
      for (int u = 0; u < scored; ++u) mean[u] += weights[u] / sum / 32;
    }
    for (int u = 0; u < scored; ++u) {
      double pooled = 0;
      for (int p = std::max(0, u - 3); p <= std::min(scored - 1, u + 3); ++p) {
        pooled = std::max(pooled, mean[p]);
      }
      scores[u] += pooled / (kHeads / kKvHeads);
    }
  }
  return scores;
}

TEST(AlteredRowsTest, KeepsSinksWindowAndTheBestScored) {
  Layer layer;
  ThreadPool pool(2);
  const ModelConfig config = Config();
  AlteredRows altered(Settings(), config, layer.rows, &pool);
  altered.selector()->TakeQueries(kPrefix - 32, 32, layer.q.data());
  altered.selector()->Score(layer.rows.k, layer.rows.stride);
  const auto rows = altered.Alter({Alteration::Kind::kKeepRows, 0}, layer.rows, 0, 0);
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->rows, 45);
  for (int h = 0; h < kKvHeads; ++h) {
    const std::vector<double> scores = SlowScores(layer, h);
    std::vector<int> order;
    for (int u = 4; u < kPrefix - 32; ++u) order.push_back(u);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return scores[a] > scores[b]; });
    std::vector<int> expected = {0, 1, 2, 3};
    expected.insert(expected.end(), order.begin(), order.begin() + 9);
    std::sort(expected.begin(), expected.end());
    for (int u = kPrefix - 32; u < kPrefix; ++u) expected.push_back(u);
    ASSERT_EQ(expected.size(), 45u);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(Same(Row(rows->k, h, i), Row(layer.rows.k, h, expected[i]))) << h << " " << i;
      EXPECT_TRUE(Same(Row(rows->v, h, i), Row(layer.rows.v, h, expected[i]))) << h << " " << i;
    }
  }
  const auto all = altered.Alter({Alteration::Kind::kKeepRows, 1}, layer.rows, 0, 0);
  ASSERT_TRUE(all.ok());
  ASSERT_EQ(all->rows, kPrefix);
  for (int h = 0; h < kKvHeads; ++h) {
    for (int u = 0; u < kPrefix; ++u) {
      EXPECT_TRUE(Same(Row(all->k, h, u), Row(layer.rows.k, h, u)));
      EXPECT_TRUE(Same(Row(all->v, h, u), Row(layer.rows.v, h, u)));
    }
  }
}

TEST(AlteredRowsTest, KeepsWhatTheSettingsSelectorChooses) {
  Layer layer;
  ThreadPool pool(1);
  const ModelConfig config = Config();
  CalibrationSettings settings = Settings();
  settings.selector = StreamingLlm{.window = 8};
  AlteredRows altered(settings, config, layer.rows, &pool);
  altered.selector()->TakeQueries(kPrefix - 32, 32, layer.q.data());
  altered.selector()->Score(layer.rows.k, layer.rows.stride);
  const auto rows = altered.Alter({Alteration::Kind::kKeepRows, 0}, layer.rows, 0, 0);
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->rows, 45);
  for (int h = 0; h < kKvHeads; ++h) {
    for (int i = 0; i < 45; ++i) {
      const int position = i < 4 ? i : kPrefix - 45 + i;
      EXPECT_TRUE(Same(Row(rows->k, h, i), Row(layer.rows.k, h, position))) << h << " " << i;
      EXPECT_TRUE(Same(Row(rows->v, h, i), Row(layer.rows.v, h, position))) << h << " " << i;
    }
  }
}

TEST(AlteredRowsTest, PerturbsValuesOnly) {
  Layer layer;
  ThreadPool pool(1);
  const ModelConfig config = Config();
  AlteredRows altered(Settings(), config, layer.rows, &pool);
  const auto rows = altered.Alter({}, layer.rows, 0, 0);
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(rows->k, layer.rows.k);
  EXPECT_EQ(rows->rows, kPrefix);
  for (int h = 0; h < kKvHeads; ++h) {
    for (int u = 0; u < kPrefix; ++u) {
      const bool is_protected = u < 4 || u >= kPrefix - 32;
      EXPECT_EQ(Same(Row(rows->v, h, u), Row(layer.rows.v, h, u)), is_protected) << u;
    }
  }
}

/// What a row reads back as, from the types' definitions (kernels/kv_type.h).
std::vector<double> SlowRoundTrip(KvType type, const std::vector<double>& x) {
  std::vector<double> result;
  const auto [least, most] = std::minmax_element(x.begin(), x.end());  // one group of 32 channels
  const double scale = type == KvType::kInt8 ? std::max(std::abs(*least), std::abs(*most)) / 127
                                             : (*most - *least) / 15;
  const double zero = type == KvType::kInt8 ? 0 : *least;
  for (const double number : x) {
    result.push_back(zero + scale * std::nearbyint((number - zero) / scale));
  }
  return result;
}

TEST(AlteredRowsTest, StoresKeysAndValuesInTheirTypes) {
  Layer layer;
  ThreadPool pool(2);
  const ModelConfig config = Config();
  AlteredRows altered(Settings(), config, layer.rows, &pool);
  for (size_t t = 0; t < std::size(kDamageTypes); ++t) {
    const KvTypes types = kDamageTypes[t];
    const auto rows =
        altered.Alter({Alteration::Kind::kStore, static_cast<int>(t)}, layer.rows, 0, 0);
    ASSERT_TRUE(rows.ok());
    ASSERT_EQ(rows->rows, kPrefix);
    const auto check = [&](const std::byte* stored, const std::byte* source, KvType type,
                           bool transformed) {
      double worst = 0;
      for (int h = 0; h < kKvHeads; ++h) {
        for (int u = 0; u < kPrefix; ++u) {
          std::vector<double> from(Row(source, h, u), Row(source, h, u) + kHeadDim);
          std::vector<double> to(Row(stored, h, u), Row(stored, h, u) + kHeadDim);
          if (transformed) {
            from = SlowHadamardRow(from);
            to = SlowHadamardRow(to);
          }
          const std::vector<double> expected = SlowRoundTrip(type, from);
          const auto [least, most] = std::minmax_element(from.begin(), from.end());
          const double step = type == KvType::kInt8
                                  ? std::max(std::abs(*least), std::abs(*most)) / 127.0
                                  : (*most - *least) / 15;
          double error = 0, difference = 0;
          for (int i = 0; i < kHeadDim; ++i) {
            error = std::max(error, std::abs(to[i] - from[i]));
            difference += std::abs(to[i] - expected[i]);
          }
          EXPECT_LE(error, 0.53 * step);  // of int4, scale and minimum are rounded to bf16
          EXPECT_GT(error, 0.2 * step);   // a row of 32 random numbers
          worst = std::max(worst, difference / kHeadDim / step);
        }
      }
      // A number between two steps may fall to either side.
      EXPECT_LT(worst, type == KvType::kInt8 ? 1e-4 : 0.4);
    };
    check(rows->k, layer.rows.k, types.k, types.k == KvType::kInt4);
    check(rows->v, layer.rows.v, types.v, false);
  }
}

TEST(AlteredRowsTest, RoundsToTheComputeType) {
  Layer layer;
  std::vector<uint16_t> k(layer.k.size()), v(layer.v.size());
  std::transform(layer.k.begin(), layer.k.end(), k.begin(), FloatToBf16);
  std::transform(layer.v.begin(), layer.v.end(), v.begin(), FloatToBf16);
  // The same numbers in fp32.
  std::transform(k.begin(), k.end(), layer.k.begin(), Bf16ToFloat);
  std::transform(v.begin(), v.end(), layer.v.begin(), Bf16ToFloat);
  LayerRows bf16 = layer.rows;
  bf16.type = KvType::kBf16;
  bf16.k = reinterpret_cast<std::byte*>(k.data());
  bf16.v = reinterpret_cast<std::byte*>(v.data());
  ThreadPool pool(1);
  const ModelConfig config = Config();
  AlteredRows of_fp32(Settings(), config, layer.rows, &pool);
  AlteredRows of_bf16(Settings(), config, bf16, &pool);
  const auto expected = of_fp32.Alter({Alteration::Kind::kStore, 0}, layer.rows, 0, 0);
  const auto rows = of_bf16.Alter({Alteration::Kind::kStore, 0}, bf16, 0, 0);
  ASSERT_TRUE(expected.ok() && rows.ok());
  for (int h = 0; h < kKvHeads; ++h) {
    for (int u = 0; u < kPrefix; ++u) {
      for (int i = 0; i < kHeadDim; ++i) {
        const size_t at = static_cast<size_t>((h * kRows + u) * kHeadDim + i);
        ASSERT_EQ(reinterpret_cast<const uint16_t*>(rows->k)[at],
                  FloatToBf16(Row(expected->k, h, u)[i]));
      }
    }
  }
}

}  // namespace
}  // namespace ripplekv
