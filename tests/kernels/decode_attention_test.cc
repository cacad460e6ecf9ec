#include "kernels/decode_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "tests/kernels/random.h"

namespace ripplekv {
namespace {

struct Shape {
  KvType type;
  int heads, kv_heads, d, rows_per_page;
};

std::vector<Shape> Shapes() {
  std::vector<Shape> shapes;
  for (KvType type : kKvTypes) {
    shapes.push_back({type, 9, 3, 64, 16});
    shapes.push_back({type, 4, 4, 64, 7});
    shapes.push_back({type, 14, 2, 40, 13});   // a group of 7, a head that is no multiple of 16
    shapes.push_back({type, 4, 1, 128, 300});  // pages longer than a split
    shapes.push_back({type, 5, 1, 6, 1});
  }
  return shapes;
}

/// Sequences of random keys and values, contiguous [kv_heads, rows, d], and in pages that lie
/// anywhere.
class Cache {
 public:
  Cache(std::mt19937& random, const Shape& shape, std::vector<int64_t> rows)
      : shape_(shape),
        layout_(KvPageLayout::For(shape.type, shape.kv_heads, shape.d,
                                  KvPageLayout::BytesForRowsPerPage(shape.type, shape.kv_heads,
                                                                    shape.d, shape.rows_per_page))),
        rows_(std::move(rows)) {
    for (int64_t n : rows_) {
      const size_t elements = static_cast<size_t>(shape.kv_heads * n * shape.d);
      k_.push_back(RandomKv(random, shape.type, elements));
      v_.push_back(RandomKv(random, shape.type, elements));
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
    const size_t row_bytes = static_cast<size_t>(shape_.d) * KvTypeBytes(shape_.type);
    for (size_t s = 0; s < rows_.size(); ++s) {
      for (int64_t r = 0; r < rows_[s]; ++r) {
        const int in_page = static_cast<int>(r % layout_.rows_per_page);
        if (in_page == 0) page_lists_[s].push_back(base + order[next++] * layout_.page_bytes);
        std::byte* page = page_lists_[s].back();
        for (int h = 0; h < shape_.kv_heads; ++h) {
          const size_t source = static_cast<size_t>(h * rows_[s] + r) * row_bytes;
          std::memcpy(page + layout_.KeyOffset(h, in_page), &k_[s].bytes[source], row_bytes);
          std::memcpy(page + layout_.ValueOffset(h, in_page), &v_[s].bytes[source], row_bytes);
        }
      }
      sequences_.push_back({page_lists_[s].data(), rows_[s]});
    }
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

  double Expected(size_t s, int head, int lane) const {
    const int kv_head = head / (shape_.heads / shape_.kv_heads);
    const int64_t n = rows_[s];
    if (n == 0) return 0;
    std::vector<double> score(static_cast<size_t>(n));
    for (int64_t r = 0; r < n; ++r) {
      double dot = 0;
      for (int c = 0; c < shape_.d; ++c) {
        dot += q_[(s * static_cast<size_t>(shape_.heads) + static_cast<size_t>(head)) *
                      static_cast<size_t>(shape_.d) +
                  static_cast<size_t>(c)] *
               k_[s].values[static_cast<size_t>((kv_head * n + r) * shape_.d + c)];
      }
      score[static_cast<size_t>(r)] = dot / std::sqrt(shape_.d);
    }
    const double max = *std::max_element(score.begin(), score.end());
    double sum = 0, weighted = 0;
    for (int64_t r = 0; r < n; ++r) {
      const double p = std::exp(score[static_cast<size_t>(r)] - max);
      sum += p;
      weighted += p * v_[s].values[static_cast<size_t>((kv_head * n + r) * shape_.d + lane)];
    }
    return weighted / sum;
  }

  const Shape shape_;
  const KvPageLayout layout_;
  const std::vector<int64_t> rows_;
  std::vector<KvData> k_, v_;
  std::vector<float> q_;
  std::vector<std::byte> arena_;
  std::vector<std::vector<std::byte*>> page_lists_;
  std::vector<PagedSequence> sequences_;
};

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
        for (int c = 0; c < shape.d; ++c, ++i) {
          const double expected = cache.Expected(s, h, c);
          for (const auto& out : outs) {
            ASSERT_NEAR(out[i], expected, 2e-6)
                << "rows " << kRagged[s] << " head " << h << " d " << shape.d;
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
      for (int threads = 1; threads <= 4; ++threads) {
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
      ASSERT_NEAR(out[i], cache.Expected(0, static_cast<int>(i / 16), static_cast<int>(i % 16)),
                  1e-3);
    }
  }
}

}  // namespace
}  // namespace ripplekv
