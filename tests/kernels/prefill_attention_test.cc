#include "kernels/prefill_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "tests/kernels/random.h"

namespace ripplekv {
namespace {

struct Shape {
  int heads, kv_heads, d, queries;
  int64_t cached;
};

/// An array that ends where its allocation ends, so that AddressSanitizer sees a read beyond it;
/// `shift` elements of misalignment.
struct Array {
  Array(size_t n, int shift) : data(new uint16_t[n + static_cast<size_t>(shift)]), begin(shift) {}
  uint16_t* get() { return data.get() + begin; }
  const uint16_t* get() const { return data.get() + begin; }
  std::unique_ptr<uint16_t[]> data;
  int begin;
};

/// Random queries, keys and values. Queries are scaled so that scores have about the standard
/// deviation `score_scale`.
struct Chunk {
  Chunk(std::mt19937& random, const Shape& s, float score_scale = 1, int shift = 0)
      : shape(s),
        q(Elements(s.queries, s.heads), shift),
        k(Elements(Rows(), s.kv_heads), shift),
        v(Elements(Rows(), s.kv_heads), shift) {
    Fill(random, q, Elements(s.queries, s.heads), score_scale);
    Fill(random, k, Elements(Rows(), s.kv_heads), 1);
    Fill(random, v, Elements(Rows(), s.kv_heads), 1);
  }

  Chunk Copy() const {
    std::mt19937 random(1);
    Chunk copy(random, shape);
    std::copy_n(q.get(), Elements(shape.queries, shape.heads), copy.q.get());
    std::copy_n(k.get(), Elements(Rows(), shape.kv_heads), copy.k.get());
    std::copy_n(v.get(), Elements(Rows(), shape.kv_heads), copy.v.get());
    return copy;
  }

  int64_t Rows() const { return shape.cached + shape.queries; }
  size_t Elements(int64_t rows, int heads) const {
    return static_cast<size_t>(rows * heads * shape.d);
  }
  static void Fill(std::mt19937& random, Array& array, size_t n, float scale) {
    const std::vector<float> x = RandomFloats(random, n, scale);
    for (size_t i = 0; i < n; ++i) array.get()[i] = FloatToBf16(x[i]);
  }

  /// Of queries [first, first + count): the rows before them count as cached.
  PrefillAttentionArgs Args(uint16_t* out, int first, int count) const {
    PrefillAttentionArgs args;
    args.heads = shape.heads;
    args.kv_heads = shape.kv_heads;
    args.head_dim = shape.d;
    args.queries = count;
    args.cached = shape.cached + first;
    args.q = q.get() + Elements(first, shape.heads);
    args.k = k.get();
    args.v = v.get();
    args.kv_head_stride = Rows() * shape.d;
    args.out = out + Elements(first, shape.heads);
    return args;
  }
  std::vector<uint16_t> Run(Isa isa, ThreadPool* pool = nullptr) const {
    std::vector<uint16_t> out(Elements(shape.queries, shape.heads), 0x7fc0);
    PrefillAttention(Args(out.data(), 0, shape.queries), pool, isa);
    return out;
  }

  Shape shape;
  Array q, k, v;
};

/// The definition, in double.
std::vector<double> PrefillAttentionPlain(const PrefillAttentionArgs& args) {
  const int d = args.head_dim;
  const int group = args.heads / args.kv_heads;
  std::vector<double> out;
  for (int i = 0; i < args.queries; ++i) {
    for (int h = 0; h < args.heads; ++h) {
      const uint16_t* q = args.q + (static_cast<int64_t>(i) * args.heads + h) * d;
      const uint16_t* k = args.k + h / group * args.kv_head_stride;
      const uint16_t* v = args.v + h / group * args.kv_head_stride;
      std::vector<double> p(static_cast<size_t>(args.cached + i + 1));
      for (size_t r = 0; r < p.size(); ++r) {
        double score = 0;
        for (int c = 0; c < d; ++c) {
          score += static_cast<double>(Bf16ToFloat(q[c])) *
                   static_cast<double>(
                       Bf16ToFloat(k[r * static_cast<size_t>(d) + static_cast<size_t>(c)]));
        }
        p[r] = score / std::sqrt(static_cast<double>(d));
      }
      const double max = *std::max_element(p.begin(), p.end());
      double sum = 0;
      std::vector<double> row(static_cast<size_t>(d));
      for (size_t r = 0; r < p.size(); ++r) {
        const double weight = std::exp(p[r] - max);
        sum += weight;
        for (size_t c = 0; c < row.size(); ++c) {
          row[c] += weight * static_cast<double>(Bf16ToFloat(v[r * row.size() + c]));
        }
      }
      for (double x : row) out.push_back(x / sum);
    }
  }
  return out;
}

/// ||a - b|| / ||b||
double RelativeError(const std::vector<uint16_t>& a, const std::vector<double>& b) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double x = static_cast<double>(Bf16ToFloat(a[i])) - b[i];
    error += x * x;
    norm += b[i] * b[i];
  }
  return std::sqrt(error / norm);
}

class PrefillAttentionTest : public ::testing::TestWithParam<Isa> {
 protected:
  std::vector<uint16_t> Run(const Chunk& chunk) const { return chunk.Run(isa_); }
  double ErrorOf(const Chunk& chunk) const {
    std::vector<uint16_t> out = Run(chunk);
    return RelativeError(out,
                         PrefillAttentionPlain(chunk.Args(out.data(), 0, chunk.shape.queries)));
  }

  const Isa isa_ = GetParam();
  std::mt19937 random_{7};
};
INSTANTIATE_TEST_SUITE_P(, PrefillAttentionTest, ::testing::ValuesIn(SupportedIsas()));

TEST_P(PrefillAttentionTest, AgreesWithDouble) {
  const Shape shapes[] = {
      {9, 3, 64, 1, 0},     {9, 3, 64, 1, 127},  {9, 3, 64, 1, 128},   {9, 3, 64, 1, 2999},
      {9, 3, 64, 16, 0},    {9, 3, 64, 17, 111}, {9, 3, 64, 256, 0},   {9, 3, 64, 33, 3000},
      {3, 3, 64, 256, 100}, {2, 2, 64, 31, 257}, {8, 2, 128, 100, 55}, {4, 1, 128, 7, 1024},
      {1, 1, 128, 130, 0},  {14, 2, 32, 40, 90}, {3, 1, 256, 20, 300}, {5, 1, 96, 9, 1}};
  for (const Shape& s : shapes) {
    EXPECT_LE(ErrorOf(Chunk(random_, s)), 3e-3)
        << s.queries << " queries over " << s.cached << ", " << s.heads << "/" << s.kv_heads
        << " heads of " << s.d;
  }
}

TEST_P(PrefillAttentionTest, AgreesWithDoubleForRandomShapes) {
  for (int i = 0; i < 24; ++i) {
    const int groups[] = {1, 3, 4};
    const int kv_heads = 1 + static_cast<int>(random_() % 2);
    const Shape s = {kv_heads * groups[random_() % 3], kv_heads, random_() % 2 == 0 ? 64 : 128,
                     1 + static_cast<int>(random_() % (i % 4 == 0 ? 256 : 40)),
                     static_cast<int64_t>(random_() % (i % 4 == 0 ? 200 : 3000))};
    EXPECT_LE(ErrorOf(Chunk(random_, s)), 3e-3)
        << s.queries << " queries over " << s.cached << ", " << s.heads << "/" << s.kv_heads
        << " heads of " << s.d;
  }
}

/// Scores of tens, where one key of a row takes nearly all: no overflow, no lost row.
TEST_P(PrefillAttentionTest, AgreesWithDoubleForLargeScores) {
  for (float scale : {20.0f, 80.0f, 1000.0f}) {
    EXPECT_LE(ErrorOf(Chunk(random_, {9, 3, 64, 50, 700}, scale)), 3e-3) << scale;
  }
}

/// Scores that grow (fall) along the keys from -80 to 80 (80 to -80): many blocks (no block)
/// outgrow the reference.
TEST_P(PrefillAttentionTest, AgreesWithDoubleForSlopingScores) {
  for (float sign : {1.0f, -1.0f}) {
    Chunk chunk(random_, {3, 1, 64, 40, 1000});
    for (size_t i = 0; i < chunk.Elements(40, 3); ++i) chunk.q.get()[i] = FloatToBf16(1);
    for (int64_t r = 0; r < chunk.Rows(); ++r) {
      const float score = sign * (-80 + 160 * static_cast<float>(r) / 1039.0f);
      for (int c = 0; c < 64; ++c) chunk.k.get()[r * 64 + c] = FloatToBf16(score / 8);
    }
    EXPECT_LE(ErrorOf(chunk), 3e-3) << sign;
  }
}

/// A query whose scores outgrow its reference in a later block, beside queries that do not: theirs
/// keep their bits, and its sums from before are not lost.
TEST_P(PrefillAttentionTest, OneQueryOutgrowsItsReference) {
  const Shape shape = {3, 1, 64, 40, 900};
  Chunk plain(random_, shape);
  for (float growth : {90.0f, 130.0f, 200.0f, 5000.0f}) {
    Chunk chunk = plain.Copy();
    // Column 0 is the growing query's alone: rows 400 and 401 have a key there.
    for (int64_t r = 0; r < chunk.Rows(); ++r) chunk.k.get()[r * 64] = 0;
    for (int64_t r : {400, 401}) chunk.k.get()[r * 64] = FloatToBf16(growth * 8);
    for (size_t row = 0; row < 120; ++row) {
      chunk.q.get()[row * 64] = FloatToBf16(row == 50 ? 1.0f : 0.0f);
    }
    EXPECT_LE(ErrorOf(chunk), 3e-3) << growth;
    const std::vector<uint16_t> out = chunk.Run(isa_);
    Chunk zero = chunk.Copy();
    for (size_t row = 0; row < 120; ++row) zero.q.get()[row * 64] = 0;
    const std::vector<uint16_t> others = zero.Run(isa_);
    for (size_t i = 0; i < out.size(); ++i) {
      if (i / 64 != 50) {
        ASSERT_EQ(out[i], others[i]) << growth << " element " << i;
      }
    }
  }
}

/// Equal scores give the mean of the visible values: with values equal to their row's parity, half
/// of them after every second row.
TEST_P(PrefillAttentionTest, EqualScoresGiveTheMean) {
  Chunk chunk(random_, {3, 1, 64, 200, 301});
  std::fill_n(chunk.k.get(), chunk.Elements(chunk.Rows(), 1), FloatToBf16(2.5f));
  for (int64_t r = 0; r < chunk.Rows(); ++r) {
    std::fill_n(chunk.v.get() + r * 64, 64, FloatToBf16(static_cast<float>(r % 2)));
  }
  const std::vector<uint16_t> out = chunk.Run(isa_);
  for (int i = 0; i < 200; ++i) {
    const double visible = 302 + i;
    const double mean = std::floor(visible / 2) / visible;
    for (size_t c = 0; c < 192; ++c) {
      const double got = static_cast<double>(Bf16ToFloat(out[static_cast<size_t>(i) * 192 + c]));
      ASSERT_NEAR(got, mean, 0.5 / 256) << i;
    }
  }
}

TEST_P(PrefillAttentionTest, BitsDoNotDependOnThreadsOrRanges) {
  const Chunk chunk(random_, {9, 3, 64, 150, 400});
  const std::vector<uint16_t> whole = chunk.Run(isa_);
  ThreadPool pool(3);
  EXPECT_EQ(chunk.Run(isa_, &pool), whole);

  std::vector<uint16_t> out(whole.size());
  const PrefillAttentionArgs args = chunk.Args(out.data(), 0, 150);
  const int64_t items = PrefillAttentionItems(args);
  EXPECT_EQ(items, 15);  // 450 rows of each KV head
  for (int64_t i = items; i-- > 0;) PrefillAttentionRange(args, i, i + 1, isa_);
  EXPECT_EQ(out, whole);
}

/// A token's bits are the same wherever its chunk begins and ends, so also one token at a time.
TEST_P(PrefillAttentionTest, BitsDoNotDependOnTheChunk) {
  for (const Shape& shape : {Shape{9, 3, 64, 140, 250}, Shape{4, 1, 128, 70, 0}}) {
    const Chunk chunk(random_, shape, 4);
    const std::vector<uint16_t> whole = chunk.Run(isa_);
    for (int size : {1, 11, 64}) {
      std::vector<uint16_t> out(whole.size());
      for (int first = 0; first < shape.queries; first += size) {
        PrefillAttention(chunk.Args(out.data(), first, std::min(size, shape.queries - first)),
                         nullptr, isa_);
      }
      EXPECT_EQ(out, whole) << size;
    }
  }
}

TEST_P(PrefillAttentionTest, BitsDoNotDependOnPlacement) {
  for (int shift : {1, 3, 16}) {
    std::mt19937 same(11), again(11);
    const Shape shape = {6, 2, 64, 45, 333};
    EXPECT_EQ(Chunk(same, shape).Run(isa_), Chunk(again, shape, 1, shift).Run(isa_)) << shift;
  }
}

/// Rows after the last token's may hold anything.
TEST_P(PrefillAttentionTest, LaterRowsDoNotMatter) {
  Chunk chunk(random_, {3, 1, 64, 100, 77});
  const std::vector<uint16_t> whole = chunk.Run(isa_);
  for (int count : {1, 29, 99}) {
    std::vector<uint16_t> out(whole.size());
    Chunk changed(random_, chunk.shape);
    std::copy_n(chunk.q.get(), chunk.Elements(100, 3), changed.q.get());
    const size_t seen = chunk.Elements(77 + count, 1);
    std::fill_n(changed.k.get(), chunk.Elements(177, 1), uint16_t{0x7fc0});
    std::fill_n(changed.v.get(), chunk.Elements(177, 1), uint16_t{0x7fc0});
    std::copy_n(chunk.k.get(), seen, changed.k.get());
    std::copy_n(chunk.v.get(), seen, changed.v.get());
    PrefillAttention(changed.Args(out.data(), 0, count), nullptr, isa_);
    const size_t size = chunk.Elements(count, 3);
    EXPECT_TRUE(std::equal(out.begin(), out.begin() + static_cast<ptrdiff_t>(size), whole.begin()))
        << count;
  }
}

TEST_P(PrefillAttentionTest, ZeroQueriesHaveNoItems) {
  PrefillAttentionArgs args;
  args.heads = 9;
  args.kv_heads = 3;
  args.head_dim = 64;
  EXPECT_EQ(PrefillAttentionItems(args), 0);
  PrefillAttention(args, nullptr, isa_);
}

TEST(PrefillAttentionSupported, NeedsAMultipleOf32UpTo256) {
  for (int d : {0, -32, 16, 40, 80, 288, 512}) EXPECT_FALSE(PrefillAttentionSupported(d)) << d;
  for (int d : {32, 64, 96, 128, 256}) EXPECT_TRUE(PrefillAttentionSupported(d)) << d;
}

}  // namespace
}  // namespace ripplekv
