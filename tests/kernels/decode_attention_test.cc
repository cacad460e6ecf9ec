#include "kernels/decode_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "kernels/kv_codec.h"
#include "tests/kernels/random.h"

namespace ripplekv {
namespace {

struct Shape {
  KvTypes types;
  int heads, kv_heads, d, rows_per_page;
};

std::vector<Shape> Shapes() {
  std::vector<Shape> shapes;
  for (KvType k : kKvTypes) {
    for (KvType v : kKvTypes) {
      shapes.push_back({{k, v}, 9, 3, 64, 16});
      if (k != v) continue;
      shapes.push_back({k, 4, 4, 64, 7});
      shapes.push_back({k, 14, 2, 40, 13});   // a group of 7, a head that is no multiple of 16
      shapes.push_back({k, 4, 1, 128, 300});  // pages longer than a split
      shapes.push_back({k, 2, 1, 96, 20});
      shapes.push_back({k, 5, 1, 80, 3});
      shapes.push_back({k, 12, 1, 20, 9});
      shapes.push_back({k, 5, 1, 6, 1});
    }
  }
  return shapes;
}

/// Rows as stored, and the values that they stand for.
struct StoredRows {
  std::vector<std::byte> bytes, params;
  std::vector<double> values;

  void Put(size_t row, const KvSide& side, std::byte* to, std::byte* to_params) const {
    std::memcpy(to, bytes.data() + row * side.row_bytes, side.row_bytes);
    std::memcpy(to_params, params.data() + row * side.param_bytes, side.param_bytes);
  }
};

StoredRows RandomRows(std::mt19937& random, KvRole role, KvType type, int d, size_t elements) {
  const std::vector<float> x = RandomFloats(random, elements);
  const size_t rows = elements / static_cast<size_t>(d);
  const size_t row_bytes = KvRowBytes(type, d), param_bytes = KvParamBytes(type, d);
  StoredRows stored{
      std::vector<std::byte>(rows * row_bytes), std::vector<std::byte>(rows * param_bytes + 1), {}};
  std::vector<float> read(static_cast<size_t>(d));
  for (size_t r = 0; r < rows; ++r) {
    std::byte* const to = stored.bytes.data() + r * row_bytes;
    std::byte* const params = stored.params.data() + r * param_bytes;
    EncodeKvRow(role, type, &x[r * static_cast<size_t>(d)], d, to, params);
    DecodeKvRow(role, type, to, params, d, read.data());
    stored.values.insert(stored.values.end(), read.begin(), read.end());
  }
  return stored;
}

/// Sequences of random keys and values, contiguous [kv_heads, rows, d], and in pages that lie
/// anywhere.
class Cache {
 public:
  Cache(std::mt19937& random, const Shape& shape, std::vector<int64_t> rows)
      : shape_(shape),
        layout_(KvPageLayout::For(shape.types, KvType::kF32, shape.kv_heads, shape.d,
                                  KvPageLayout::BytesForRowsPerPage(shape.types, shape.kv_heads,
                                                                    shape.d, shape.rows_per_page))),
        rows_(std::move(rows)) {
    for (int64_t n : rows_) {
      const size_t elements = static_cast<size_t>(shape.kv_heads * n * shape.d);
      k_.push_back(RandomRows(random, KvRole::kKey, shape.types.k, shape.d, elements));
      v_.push_back(RandomRows(random, KvRole::kValue, shape.types.v, shape.d, elements));
    }
    q_ = RandomFloats(random, rows_.size() * static_cast<size_t>(shape.heads * shape.d));
    Place(random);
  }

  /// Copies the rows to pages in a new random order; unused room holds NaN patterns.
  void Place(std::mt19937& random) {
    int64_t pages = 0;
    for (int64_t n : rows_) pages += layout_.PagesFor(n);
    std::vector<size_t> order(static_cast<size_t>(pages));
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    arena_.assign(static_cast<size_t>(pages) * layout_.page_bytes + 64, std::byte{0xff});
    std::byte* base = arena_.data() + (64 - reinterpret_cast<uintptr_t>(arena_.data()) % 64) % 64;
    page_lists_.assign(rows_.size(), {});
    sequences_.clear();
    size_t next = 0;
    for (size_t s = 0; s < rows_.size(); ++s) {
      for (int64_t r = 0; r < rows_[s]; ++r) {
        const int in_page = static_cast<int>(r % layout_.rows_per_page);
        if (in_page == 0) page_lists_[s].push_back(base + order[next++] * layout_.page_bytes);
        std::byte* page = page_lists_[s].back();
        for (int h = 0; h < shape_.kv_heads; ++h) {
          const auto row = static_cast<size_t>(h * rows_[s] + r);
          k_[s].Put(row, layout_.k, page + layout_.KeyOffset(h, in_page),
                    page + layout_.ParamOffset(layout_.k, h, in_page));
          v_[s].Put(row, layout_.v, page + layout_.ValueOffset(h, in_page),
                    page + layout_.ParamOffset(layout_.v, h, in_page));
        }
      }
      sequences_.push_back({page_lists_[s].data(), rows_[s]});
    }
  }

  /// From now on runs give the mass of the rows from first_row(rows) on, for sequences with
  /// `wanted`.
  void WantMass(const std::vector<bool>& wanted, const std::vector<int64_t>& first_row) {
    masses_.assign(rows_.size(), {});
    for (size_t s = 0; s < rows_.size(); ++s) {
      sequences_[s].mass = nullptr;
      if (!wanted[s]) continue;
      sequences_[s].mass_first_row = first_row[s];
      sequences_[s].mass_stride = rows_[s] - first_row[s] + static_cast<int64_t>(s % 3);
      masses_[s].resize(static_cast<size_t>(sequences_[s].mass_stride * shape_.kv_heads) + 1);
      sequences_[s].mass = masses_[s].data();
    }
  }

  /// The masses of a run; what is not written is 7.
  std::vector<std::vector<float>> RunForMass(Isa isa, ThreadPool* pool, size_t first, size_t last,
                                             std::vector<float>* out = nullptr) {
    for (auto& mass : masses_) std::fill(mass.begin(), mass.end(), 7.0f);
    const std::vector<float> result = Run(isa, pool, first, last);
    if (out != nullptr) *out = result;
    return masses_;
  }

  /// Runs on sequences [first, last).
  std::vector<float> Run(Isa isa, ThreadPool* pool, size_t first, size_t last) const {
    DecodeAttentionArgs args;
    args.layout = layout_;
    args.heads = shape_.heads;
    args.sequences = static_cast<int>(last - first);
    args.sequence = sequences_.data() + first;
    args.q = q_.data() + first * static_cast<size_t>(shape_.heads * shape_.d);
    std::vector<float> out((last - first) * static_cast<size_t>(shape_.heads * shape_.d), NAN);
    std::vector<float> workspace(DecodeAttentionWorkspaceFloats(args), NAN);
    args.out = out.data();
    args.workspace = workspace.data();
    DecodeAttention(args, pool, isa);
    return out;
  }

  std::vector<float> Run(Isa isa) const { return Run(isa, nullptr, 0, rows_.size()); }

  /// Softmax over the rows.
  std::vector<double> Probabilities(size_t s, int head) const {
    const int kv_head = head / (shape_.heads / shape_.kv_heads);
    const int64_t n = rows_[s];
    std::vector<double> p(static_cast<size_t>(n));
    for (int64_t r = 0; r < n; ++r) {
      double dot = 0;
      for (int c = 0; c < shape_.d; ++c) {
        dot += q_[(s * static_cast<size_t>(shape_.heads) + static_cast<size_t>(head)) *
                      static_cast<size_t>(shape_.d) +
                  static_cast<size_t>(c)] *
               k_[s].values[static_cast<size_t>((kv_head * n + r) * shape_.d + c)];
      }
      p[static_cast<size_t>(r)] = dot / std::sqrt(shape_.d);
    }
    const double max = n > 0 ? *std::max_element(p.begin(), p.end()) : 0;
    double sum = 0;
    for (double& x : p) sum += x = std::exp(x - max);
    for (double& x : p) x /= sum;
    return p;
  }

  /// Output lanes [d] of a head; and, where wanted, what they would be with the values' magnitudes.
  std::vector<double> Expected(size_t s, int head,
                               std::vector<double>* magnitudes = nullptr) const {
    const int kv_head = head / (shape_.heads / shape_.kv_heads);
    const std::vector<double> p = Probabilities(s, head);
    std::vector<double> out(static_cast<size_t>(shape_.d));
    if (magnitudes != nullptr) magnitudes->assign(out.size(), 0);
    for (int64_t r = 0; r < rows_[s]; ++r) {
      for (size_t c = 0; c < out.size(); ++c) {
        const double x = p[static_cast<size_t>(r)] *
                         v_[s].values[static_cast<size_t>((kv_head * rows_[s] + r) * shape_.d) + c];
        out[c] += x;
        if (magnitudes != nullptr) (*magnitudes)[c] += std::abs(x);
      }
    }
    return out;
  }

  /// Mass of all rows of a KV head.
  std::vector<double> ExpectedMass(size_t s, int kv_head) const {
    const int group = shape_.heads / shape_.kv_heads;
    std::vector<double> mass(static_cast<size_t>(rows_[s]));
    for (int g = 0; g < group; ++g) {
      const std::vector<double> p = Probabilities(s, kv_head * group + g);
      for (size_t r = 0; r < mass.size(); ++r) mass[r] += p[r];
    }
    return mass;
  }

  const Shape shape_;
  const KvPageLayout layout_;
  const std::vector<int64_t> rows_;
  std::vector<StoredRows> k_, v_;
  std::vector<float> q_;
  std::vector<std::byte> arena_;
  std::vector<std::vector<std::byte*>> page_lists_;
  std::vector<PagedSequence> sequences_;
  std::vector<std::vector<float>> masses_;
};

/// How far a probability may be off, of all rows together.
double ScoreBound(Isa isa, KvType keys) {
  if (isa != Isa::kV4Dot || keys == KvType::kF32) return 3e-6;
  // Queries are rounded to 16 bits, those of integers in units of the largest channel.
  return keys == KvType::kBf16 ? 2e-5 : 1e-4;
}

/// How far an output may be off whose values' magnitudes average `magnitude`.
double OutputBound(Isa isa, KvTypes types, double magnitude) {
  double bound = 2e-6;
  if (isa == Isa::kV4Dot && types.k != KvType::kF32) bound = 2 * ScoreBound(isa, types.k);
  if (isa == Isa::kV4Dot && types.v == KvType::kBf16) bound += magnitude / 256;  // rounded weights
  if (isa == Isa::kV4Dot && types.v == KvType::kInt8) bound += 5e-5;
  // Half a step of a weight, of a group's range.
  if (isa == Isa::kV4Dot && types.v == KvType::kInt4) bound += 2e-4;
  return bound;
}

const std::vector<int64_t> kRagged = {1, 3, 0, 255, 256, 257, 700, 17};

TEST(DecodeAttentionTest, AgreesWithDoublePrecision) {
  std::mt19937 random(6);
  for (const Shape& shape : Shapes()) {
    const Cache cache(random, shape, kRagged);
    std::vector<std::vector<float>> outs;
    for (Isa isa : SupportedIsas()) outs.push_back(cache.Run(isa));
    size_t i = 0;
    for (size_t s = 0; s < kRagged.size(); ++s) {
      for (int h = 0; h < shape.heads; ++h) {
        std::vector<double> magnitudes;
        const std::vector<double> expected = cache.Expected(s, h, &magnitudes);
        for (size_t c = 0; c < expected.size(); ++c, ++i) {
          for (size_t n = 0; n < outs.size(); ++n) {
            const Isa isa = SupportedIsas()[n];
            ASSERT_NEAR(outs[n][i], expected[c], OutputBound(isa, shape.types, magnitudes[c]))
                << IsaName(isa) << ", " << KvTypeName(shape.types.k) << " keys, "
                << KvTypeName(shape.types.v) << " values, rows " << kRagged[s] << " head " << h
                << " d " << shape.d;
          }
        }
      }
    }
  }
}

TEST(DecodeAttentionTest, BitsDoNotDependOnBatchThreadsOrPages) {
  std::mt19937 random(7);
  for (const Shape& shape : Shapes()) {
    Cache cache(random, shape, kRagged);
    for (Isa isa : SupportedIsas()) {
      const std::vector<float> expected = cache.Run(isa);
      cache.Place(random);
      EXPECT_EQ(cache.Run(isa), expected) << "other pages";
      for (int threads : {1, 2, 4}) {
        ThreadPool pool(threads);
        EXPECT_EQ(cache.Run(isa, &pool, 0, kRagged.size()), expected) << threads << " threads";
      }
      const size_t per_sequence = static_cast<size_t>(shape.heads * shape.d);
      for (size_t s = 0; s < kRagged.size(); ++s) {
        const std::vector<float> alone = cache.Run(isa, nullptr, s, s + 1);
        EXPECT_TRUE(std::equal(alone.begin(), alone.end(),
                               expected.begin() + static_cast<ptrdiff_t>(s * per_sequence)))
            << "sequence " << s << " alone";
      }
    }
  }
}

TEST(DecodeAttentionTest, RowsPerPageDoNotChangeTheBits) {
  for (Isa isa : SupportedIsas()) {
    std::vector<float> expected;
    for (int rows_per_page : {1, 5, 16, 64, 1000}) {
      std::mt19937 random(8);  // the same rows every time
      const Cache cache(random, {KvType::kBf16, 9, 3, 64, rows_per_page}, {600, 90});
      const std::vector<float> out = cache.Run(isa);
      if (expected.empty()) expected = out;
      EXPECT_EQ(out, expected) << rows_per_page;
    }
  }
}

TEST(DecodeAttentionTest, ItemRangesCoverAnySplit) {
  std::mt19937 random(9);
  const Cache cache(random, {KvType::kBf16, 6, 2, 32, 16}, {600, 0, 300});
  const std::vector<float> expected = cache.Run(BestIsa());
  DecodeAttentionArgs args;
  args.layout = cache.layout_;
  args.heads = 6;
  args.sequences = 3;
  args.sequence = cache.sequences_.data();
  args.q = cache.q_.data();
  EXPECT_EQ(DecodeAttentionItems(args), (3 + 0 + 2) * 2);
  for (int64_t cut = 0; cut <= 10; ++cut) {
    std::vector<float> out(expected.size(), NAN);
    std::vector<float> workspace(DecodeAttentionWorkspaceFloats(args), NAN);
    args.out = out.data();
    args.workspace = workspace.data();
    DecodeAttentionPartial(args, cut, 10);
    DecodeAttentionPartial(args, 0, cut);
    DecodeAttentionMerge(args, 5, 18);
    DecodeAttentionMerge(args, 0, 5);
    EXPECT_EQ(out, expected) << cut;
  }
}

TEST(DecodeAttentionTest, LargeScoresDoNotOverflow) {
  std::mt19937 random(10);
  Cache cache(random, {KvType::kF32, 2, 1, 16, 8}, {600});
  for (float& q : cache.q_) q *= 1000;
  for (Isa isa : SupportedIsas()) {
    const std::vector<float> out = cache.Run(isa);
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_NEAR(out[i], cache.Expected(0, static_cast<int>(i / 16))[i % 16], 1e-3);
    }
  }
}

const std::vector<bool> kAll(kRagged.size(), true);
const std::vector<int64_t> kFromStart(kRagged.size(), 0);
// Nothing skipped, all skipped, whole splits, parts of splits.
const std::vector<int64_t> kFirstRows = {0, 2, 0, 255, 100, 256, 531, 16};

TEST(DecodeAttentionTest, MassAgreesWithDoublePrecision) {
  std::mt19937 random(11);
  for (const Shape& shape : Shapes()) {
    Cache cache(random, shape, kRagged);
    for (const std::vector<int64_t>& first_rows : {kFromStart, kFirstRows}) {
      cache.WantMass(kAll, first_rows);
      for (Isa isa : SupportedIsas()) {
        const auto masses = cache.RunForMass(isa, nullptr, 0, kRagged.size());
        for (size_t s = 0; s < kRagged.size(); ++s) {
          const int64_t stride = cache.sequences_[s].mass_stride;
          for (int h = 0; h < shape.kv_heads; ++h) {
            const std::vector<double> expected = cache.ExpectedMass(s, h);
            for (int64_t i = 0; i < stride; ++i) {
              const int64_t row = first_rows[s] + i;
              const float mass = masses[s][static_cast<size_t>(h * stride + i)];
              if (row < kRagged[s]) {
                ASSERT_NEAR(mass, expected[static_cast<size_t>(row)],
                            (shape.heads / shape.kv_heads + 2) / 3 * ScoreBound(isa, shape.types.k))
                    << "rows " << kRagged[s] << " row " << row << " KV head " << h << " d "
                    << shape.d;
              } else {
                ASSERT_EQ(mass, 7) << "written beyond the rows";
              }
            }
          }
          ASSERT_EQ(masses[s].back(), 7);
        }
      }
    }
  }
}

// Scores far above those of the rows before them lower what these have left.
TEST(DecodeAttentionTest, MassOfScoresThatRise) {
  std::mt19937 random(14);
  Cache cache(random, {KvType::kF32, 2, 1, 16, 8}, {600});
  for (float& q : cache.q_) q *= 200;
  cache.WantMass({true}, {0});
  const std::vector<double> expected = cache.ExpectedMass(0, 0);
  for (Isa isa : SupportedIsas()) {
    std::vector<float> out;
    const std::vector<float> mass = cache.RunForMass(isa, nullptr, 0, 1, &out)[0];
    for (size_t r = 0; r < expected.size(); ++r) ASSERT_NEAR(mass[r], expected[r], 1e-3) << r;
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_NEAR(out[i], cache.Expected(0, static_cast<int>(i / 16))[i % 16], 1e-3);
    }
  }
}

// A row that holds what is not finite reads as NaN throughout.
TEST(DecodeAttentionTest, IntegerRowsThatAreNotFiniteSpoilTheirHead) {
  for (KvType type : {KvType::kInt8, KvType::kInt4}) {
    for (bool keys : {true, false}) {
      std::mt19937 random(15);
      Cache cache(random, {type, 4, 2, 64, 32}, {300});
      const KvSide& side = keys ? cache.layout_.k : cache.layout_.v;
      const std::vector<float> row(64, INFINITY);
      std::byte* const page = cache.page_lists_[0][3];
      EncodeKvRow(side.role, type, row.data(), 64, page + cache.layout_.RowOffset(side, 1, 5),
                  page + cache.layout_.ParamOffset(side, 1, 5));
      for (Isa isa : SupportedIsas()) {
        const std::vector<float> out = cache.Run(isa);
        for (size_t i = 0; i < out.size(); ++i) {
          ASSERT_EQ(std::isnan(out[i]), i >= 2 * 64) << KvTypeName(type) << " " << i;
        }
      }
    }
  }
}

// With and without, in any company, which may want it or not, on any threads and pages; and the
// output is the same as without.
TEST(DecodeAttentionTest, MassBitsDoNotDependOnBatchThreadsOrPages) {
  std::mt19937 random(12);
  for (const Shape& shape : Shapes()) {
    Cache cache(random, shape, kRagged);
    for (Isa isa : SupportedIsas()) {
      cache.WantMass(std::vector<bool>(kRagged.size(), false), kFromStart);
      const std::vector<float> plain = cache.Run(isa);
      cache.WantMass(kAll, kFirstRows);
      std::vector<float> out;
      const auto expected = cache.RunForMass(isa, nullptr, 0, kRagged.size(), &out);
      EXPECT_EQ(out, plain);
      cache.Place(random);
      cache.WantMass(kAll, kFirstRows);
      EXPECT_EQ(cache.RunForMass(isa, nullptr, 0, kRagged.size()), expected) << "other pages";
      for (int threads : {1, 3}) {
        ThreadPool pool(threads);
        EXPECT_EQ(cache.RunForMass(isa, &pool, 0, kRagged.size(), &out), expected)
            << threads << " threads";
        EXPECT_EQ(out, plain);
      }
      for (size_t s = 0; s < kRagged.size(); s += 3) {
        EXPECT_EQ(cache.RunForMass(isa, nullptr, s, s + 1)[s], expected[s])
            << "sequence " << s << " alone";
        std::vector<bool> only(kRagged.size(), false);
        only[s] = true;
        cache.WantMass(only, kFirstRows);
        EXPECT_EQ(cache.RunForMass(isa, nullptr, 0, kRagged.size(), &out)[s], expected[s])
            << "only sequence " << s;
        EXPECT_EQ(out, plain);
        cache.WantMass(kAll, kFirstRows);
      }
    }
  }
}

TEST(DecodeAttentionTest, MassComesWithAnyRangesOfTheMerge) {
  std::mt19937 random(13);
  Cache cache(random, {KvType::kBf16, 6, 2, 32, 16}, {600, 0, 300});
  cache.WantMass({true, true, true}, {0, 0, 40});
  const auto expected = cache.RunForMass(BestIsa(), nullptr, 0, 3);
  DecodeAttentionArgs args;
  args.layout = cache.layout_;
  args.heads = 6;
  args.sequences = 3;
  args.sequence = cache.sequences_.data();
  args.q = cache.q_.data();
  std::vector<float> out(3 * 6 * 32, NAN);
  args.out = out.data();
  for (int64_t cut = 0; cut <= 18; ++cut) {
    for (auto& mass : cache.masses_) std::fill(mass.begin(), mass.end(), 7.0f);
    std::vector<float> workspace(DecodeAttentionWorkspaceFloats(args), NAN);
    args.workspace = workspace.data();
    DecodeAttentionPartial(args, 4, 10);
    DecodeAttentionPartial(args, 0, 4);
    DecodeAttentionMerge(args, cut, 18);
    DecodeAttentionMerge(args, 0, cut);
    EXPECT_EQ(cache.masses_, expected) << cut;
  }
}

}  // namespace
}  // namespace ripplekv
