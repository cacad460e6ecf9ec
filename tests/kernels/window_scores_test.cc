#include "kernels/window_scores.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/thread_pool.h"
#include "tests/kernels/random.h"

namespace ripplekv {
namespace {

struct Shape {
  int heads, kv_heads, d, window;
  int64_t rows;
};

struct Fixture {
  Fixture(std::mt19937& random, KvType type, const Shape& s, Pooling pooling, int kernel) {
    stride = s.rows * s.d + 40;
    q = RandomKv(random, type, static_cast<size_t>(s.window * s.heads * s.d), 2);
    k = RandomKv(random, type, static_cast<size_t>(s.kv_heads * stride), 2);
    scores.assign(static_cast<size_t>(s.heads * (s.rows - s.window)), NAN);
    args.type = type;
    args.heads = s.heads;
    args.kv_heads = s.kv_heads;
    args.head_dim = s.d;
    args.window = s.window;
    args.rows = s.rows;
    args.q = q.bytes.data();
    args.k = k.bytes.data();
    args.kv_head_stride = stride;
    args.pooling = pooling;
    args.kernel = kernel;
    args.scores = scores.data();
  }

  std::vector<double> Expected(int head) const {
    const int64_t n = args.rows - args.window;
    const int kv_head = head / (args.heads / args.kv_heads);
    std::vector<double> mean(static_cast<size_t>(n));
    for (int i = 0; i < args.window; ++i) {
      std::vector<double> e;
      double sum = 0, max = -INFINITY;
      for (int64_t u = 0; u <= n + i; ++u) {
        double dot = 0;
        for (int c = 0; c < args.head_dim; ++c) {
          dot += q.values[static_cast<size_t>((i * args.heads + head) * args.head_dim + c)] *
                 k.values[static_cast<size_t>(kv_head * stride + u * args.head_dim + c)];
        }
        e.push_back(dot / std::sqrt(args.head_dim));
        max = std::max(max, e.back());
      }
      for (double& x : e) sum += x = std::exp(x - max);
      for (int64_t u = 0; u < n; ++u)
        mean[static_cast<size_t>(u)] += e[static_cast<size_t>(u)] / sum / args.window;
    }
    if (args.pooling == Pooling::kNone) return mean;
    std::vector<double> pooled;
    const int64_t half = args.kernel / 2;
    for (int64_t u = 0; u < n; ++u) {
      double max = -INFINITY, sum = 0;
      for (int64_t j = u - half; j <= u + half; ++j) {
        if (j < 0 || j >= n) continue;
        max = std::max(max, mean[static_cast<size_t>(j)]);
        sum += mean[static_cast<size_t>(j)];
      }
      pooled.push_back(args.pooling == Pooling::kMax ? max : sum / args.kernel);
    }
    return pooled;
  }

  int64_t stride;
  KvData q, k;
  std::vector<float> scores;
  WindowScoresArgs args;
};

const Shape kShapes[] = {{9, 3, 64, 32, 200}, {2, 1, 20, 5, 29},  {4, 4, 128, 40, 120},
                         {1, 1, 16, 1, 2},    {3, 1, 64, 70, 90}, {2, 2, 8, 16, 17}};

TEST(WindowScoresTest, AgreesWithDoublePrecision) {
  std::mt19937 random(70);
  for (KvType type : kFloatKvTypes) {
    for (const Shape& shape : kShapes) {
      for (Pooling pooling : {Pooling::kNone, Pooling::kMax, Pooling::kMean}) {
        for (int kernel : {1, 7, 255}) {
          Fixture f(random, type, shape, pooling, kernel);
          const int64_t n = shape.rows - shape.window;
          for (Isa isa : SupportedIsas()) {
            std::fill(f.scores.begin(), f.scores.end(), NAN);
            WindowScores(f.args, 0, shape.heads, isa);
            for (int h = 0; h < shape.heads; ++h) {
              const std::vector<double> expected = f.Expected(h);
              for (int64_t u = 0; u < n; ++u) {
                const double e = expected[static_cast<size_t>(u)];
                ASSERT_NEAR(f.scores[static_cast<size_t>(h * n + u)], e, 1e-5 * e + 1e-12)
                    << IsaName(isa) << " head " << h << " position " << u << " window "
                    << shape.window;
              }
            }
          }
        }
      }
    }
  }
}

TEST(WindowScoresTest, HeadsMaySplitInAnyWay) {
  std::mt19937 random(71);
  Fixture f(random, KvType::kBf16, {9, 3, 64, 32, 500}, Pooling::kMax, 7);
  WindowScores(f.args, 0, 9);
  const std::vector<float> expected = f.scores;
  for (int threads = 1; threads <= 4; ++threads) {
    ThreadPool pool(threads);
    std::fill(f.scores.begin(), f.scores.end(), NAN);
    pool.ParallelFor(9, 1, [&](int64_t begin, int64_t end) {
      WindowScores(f.args, static_cast<int>(begin), static_cast<int>(end));
    });
    EXPECT_EQ(f.scores, expected);
  }
}

TEST(WindowScoresTest, MeanOverGroup) {
  const std::vector<float> scores = {1, 2, 3, 4, 5, 9, 10, 20, 30, 40, 50, 60};
  std::vector<float> out(4);
  MeanOverGroup(scores.data(), 6, 2, 2, out.data());
  EXPECT_EQ(out, (std::vector<float>{3, 5, 30, 40}));
  std::vector<float> same = scores;
  MeanOverGroup(same.data(), 6, 6, 2, same.data());
  EXPECT_EQ(same, scores);
}

}  // namespace
}  // namespace ripplekv
