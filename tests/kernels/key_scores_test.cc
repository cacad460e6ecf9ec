#include "kernels/key_scores.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "kernels/thread_pool.h"
#include "tests/kernels/random.h"

namespace ripplekv {
namespace {

struct Shape {
  int heads, kv_heads, d;
  int64_t rows;
  std::vector<int32_t> positions;
  int64_t end;
};

/// The last n positions of `rows`.
std::vector<int32_t> Last(int n, int64_t rows) {
  std::vector<int32_t> positions(static_cast<size_t>(n));
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(rows - n));
  return positions;
}

/// Every `stride`th position below `rows`, from `first` on.
std::vector<int32_t> Strided(int first, int stride, int64_t rows) {
  std::vector<int32_t> positions;
  for (int64_t p = first; p < rows; p += stride) positions.push_back(static_cast<int32_t>(p));
  return positions;
}

class Fixture {
 public:
  Fixture(std::mt19937& random, KvType type, const Shape& s)
      : shape_(s),
        stride_(s.rows * s.d + 40),
        q_(RandomKv(random, type, s.positions.size() * static_cast<size_t>(s.heads * s.d), 2)),
        k_(RandomKv(random, type, static_cast<size_t>(s.kv_heads * stride_), 2)) {
    args.type = type;
    args.heads = s.heads;
    args.kv_heads = s.kv_heads;
    args.head_dim = s.d;
    args.rows = s.rows;
    args.queries = static_cast<int>(s.positions.size());
    args.positions = shape_.positions.data();
    args.q = q_.bytes.data();
    args.k = k_.bytes.data();
    args.kv_head_stride = stride_;
    args.end = s.end;
  }

  std::vector<float> Run(int threads, Isa isa = BestIsa()) {
    // Behind what may be written lie numbers that must stay.
    const auto floats = static_cast<size_t>(KeyScoresWorkspaceFloats(args, threads));
    std::vector<float> workspace(floats, NAN);
    workspace.push_back(7);
    std::vector<float> scores(static_cast<size_t>(args.heads * args.end), NAN);
    scores.push_back(7);
    args.workspace = workspace.data();
    args.scores = scores.data();
    ThreadPool pool(threads);
    KeyScores(args, threads == 1 ? nullptr : &pool, isa);
    EXPECT_EQ(workspace.back(), 7);
    EXPECT_EQ(scores.back(), 7);
    scores.pop_back();
    return scores;
  }

  /// [end]: the attention that the keys get, summed over the queries.
  std::vector<double> Sums(int head) const {
    const int kv_head = head / (args.heads / args.kv_heads);
    std::vector<double> sums(static_cast<size_t>(args.end));
    for (int i = 0; i < args.queries; ++i) {
      std::vector<double> e;
      double sum = 0, max = -INFINITY;
      for (int64_t u = 0; u <= args.positions[i]; ++u) {
        double dot = 0;
        for (int c = 0; c < args.head_dim; ++c) {
          dot += q_.values[static_cast<size_t>((i * args.heads + head) * args.head_dim + c)] *
                 k_.values[static_cast<size_t>(kv_head * stride_ + u * args.head_dim + c)];
        }
        e.push_back(dot / std::sqrt(args.head_dim));
        max = std::max(max, e.back());
      }
      for (double& x : e) sum += x = std::exp(x - max);
      for (size_t u = 0; u < std::min(e.size(), sums.size()); ++u) sums[u] += e[u] / sum;
    }
    return sums;
  }

  /// Sums divided and pooled.
  std::vector<double> Finish(std::vector<double> a) const {
    const int64_t n = args.end;
    for (int64_t u = 0; u < n && args.divisor == KeyScoreDivisor::kCount; ++u) {
      const auto seen = std::count_if(args.positions, args.positions + args.queries,
                                      [&](int32_t p) { return p >= u; });
      double& x = a[static_cast<size_t>(u)];
      x = seen == 0 ? 0 : x / static_cast<double>(seen);
    }
    if (args.pooling == Pooling::kNone) return a;
    std::vector<double> pooled;
    const int64_t half = args.kernel / 2;
    for (int64_t u = 0; u < n; ++u) {
      double max = -INFINITY, sum = 0;
      for (int64_t j = std::max<int64_t>(0, u - half); j <= std::min(u + half, n - 1); ++j) {
        max = std::max(max, a[static_cast<size_t>(j)]);
        sum += a[static_cast<size_t>(j)];
      }
      pooled.push_back(args.pooling == Pooling::kMax ? max : sum / args.kernel);
    }
    return pooled;
  }

  KeyScoresArgs args;

 private:
  Shape shape_;
  int64_t stride_;
  KvData q_, k_;
};

/// Heads, KV heads, width, rows, queries, scored keys.
std::vector<Shape> Shapes() {
  return {{9, 3, 64, 200, Last(32, 200), 168},  // SnapKV: the keys before the window
          {2, 1, 20, 29, Last(5, 29), 24},
          {4, 4, 128, 120, Last(40, 120), 80},
          {1, 1, 16, 2, Last(1, 2), 1},
          {3, 1, 64, 90, Last(70, 90), 20},
          {2, 2, 8, 17, Last(16, 17), 1},
          {2, 1, 64, 300, Last(256, 300), 268},  // keys that not every query sees
          {3, 1, 64, 211, Strided(0, 3, 211), 211},
          {2, 1, 32, 150, Strided(7, 16, 140), 150},  // keys that none sees
          {1, 1, 7, 61, Strided(60, 1, 61), 61},
          {1, 1, 512, 53, Strided(5, 11, 53), 50},
          {1, 1, 2, 1, {0}, 1},
          {2, 1, 64, 40, {0, 0, 3, 3, 3, 39}, 40}};
}

TEST(KeyScoresTest, AgreesWithDoublePrecision) {
  std::mt19937 random(70);
  for (KvType type : kFloatKvTypes) {
    for (const Shape& shape : Shapes()) {
      Fixture f(random, type, shape);
      std::vector<std::vector<double>> sums;
      for (int h = 0; h < shape.heads; ++h) sums.push_back(f.Sums(h));
      for (KeyScoreDivisor divisor : {KeyScoreDivisor::kOne, KeyScoreDivisor::kCount}) {
        for (Pooling pooling : {Pooling::kNone, Pooling::kMax, Pooling::kMean}) {
          for (int kernel : {1, 7, 255}) {
            f.args.divisor = divisor;
            f.args.pooling = pooling;
            f.args.kernel = kernel;
            for (Isa isa : SupportedIsas()) {
              const std::vector<float> scores = f.Run(1, isa);
              for (int h = 0; h < shape.heads; ++h) {
                const std::vector<double> expected = f.Finish(sums[static_cast<size_t>(h)]);
                for (int64_t u = 0; u < shape.end; ++u) {
                  const double e = expected[static_cast<size_t>(u)];
                  ASSERT_NEAR(scores[static_cast<size_t>(h * shape.end + u)], e, 1e-5 * e + 1e-12)
                      << IsaName(isa) << " rows " << shape.rows << " head " << h << " position "
                      << u;
                }
              }
            }
          }
        }
      }
    }
  }
}

// Every number of keys up to beyond two tiles, and every number of queries up to beyond a part.
TEST(KeyScoresTest, AllTailSizes) {
  std::mt19937 random(71);
  for (KvType type : kFloatKvTypes) {
    for (int size = 1; size <= 70; ++size) {
      for (const Shape& shape :
           {Shape{1, 1, 64, size, Last(1, size), size}, Shape{1, 1, 64, 80, Last(size, 80), 75}}) {
        Fixture f(random, type, shape);
        f.args.divisor = KeyScoreDivisor::kOne;
        const std::vector<double> expected = f.Sums(0);
        for (Isa isa : SupportedIsas()) {
          const std::vector<float> scores = f.Run(1, isa);
          for (size_t u = 0; u < expected.size(); ++u) {
            ASSERT_NEAR(scores[u], expected[u], 1e-5 * expected[u] + 1e-12)
                << IsaName(isa) << " size " << size << " position " << u;
          }
        }
      }
    }
  }
}

// Scores far beyond what e^x can hold, in both directions.
TEST(KeyScoresTest, LargeScores) {
  std::mt19937 random(72);
  for (KvType type : kFloatKvTypes) {
    Fixture f(random, type, {1, 1, 64, 100, Last(20, 100), 100});
    std::vector<std::byte> q(20 * 64 * KvTypeBytes(type)), k(100 * 64 * KvTypeBytes(type));
    const auto set = [&](std::vector<std::byte>& bytes, size_t i, float x) {
      const uint16_t half = FloatToBf16(x);
      if (type == KvType::kF32) std::memcpy(&bytes[4 * i], &x, 4);
      if (type == KvType::kBf16) std::memcpy(&bytes[2 * i], &half, 2);
    };
    for (size_t i = 0; i < 20; ++i) set(q, i * 64, i % 2 == 0 ? 1024.0f : -1024.0f);
    set(k, 50 * 64, 1024.0f);  // scores 0 but for this key's 131072 and -131072
    f.args.q = q.data();
    f.args.k = k.data();
    f.args.divisor = KeyScoreDivisor::kOne;
    for (Isa isa : SupportedIsas()) {
      const std::vector<float> scores = f.Run(1, isa);
      EXPECT_FLOAT_EQ(scores[50], 10) << IsaName(isa);
      double other = 0;
      for (int i = 1; i < 20; i += 2) other += 1.0 / (80 + i);
      EXPECT_NEAR(scores[3], other, 1e-6) << IsaName(isa);
    }
  }
}

TEST(KeyScoresTest, BitsDoNotDependOnThreads) {
  std::mt19937 random(73);
  Fixture f(random, KvType::kBf16, {9, 3, 64, 500, Last(200, 500), 400});
  f.args.pooling = Pooling::kMean;
  const std::vector<float> expected = f.Run(1);
  for (int threads = 2; threads <= 5; ++threads) EXPECT_EQ(f.Run(threads), expected);
}

// A query's share is the same among others: what the last part's queries add does not depend on
// the parts before it.
TEST(KeyScoresTest, QueriesAddUp) {
  std::mt19937 random(74);
  const std::vector<int32_t> positions = Last(128, 300);
  Fixture f(random, KvType::kBf16, {3, 1, 64, 300, positions, 172});
  f.args.divisor = KeyScoreDivisor::kOne;
  const std::vector<float> all = f.Run(1);
  f.args.queries = 64;
  const std::vector<float> first = f.Run(1);
  f.args.positions += 64;
  f.args.q = static_cast<const uint16_t*>(f.args.q) + 64 * 3 * 64;
  const std::vector<float> second = f.Run(1);
  for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], first[i] + second[i]);
}

TEST(KeyScoresTest, MeanOverGroup) {
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
