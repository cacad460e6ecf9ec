#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/kv_codec.h"
#include "tests/kernels/device.h"
#include "tests/kernels/random.h"

namespace ripplekv {

struct AttentionShape {
  int heads, kv_heads, d, rows_per_page;
};

inline const std::vector<int64_t> kRagged = {1, 3, 0, 255, 256, 257, 700, 17};
// Nothing skipped, all skipped, whole splits, parts of splits.
inline const std::vector<int64_t> kFirstMassRows = {0, 2, 0, 255, 100, 256, 531, 16};

/// The keys or the values of a sequence as pages store them, [kv_heads, rows], and the exact values
/// that they stand for.
struct StoredRows {
  StoredRows(std::mt19937& random, KvRole role, KvType type, int64_t rows, int d)
      : row_bytes(KvRowBytes(type, d)),
        param_bytes(KvParamBytes(type, d)),
        bytes(static_cast<size_t>(rows) * row_bytes),
        params(static_cast<size_t>(rows) * param_bytes),
        values(static_cast<size_t>(rows * d)) {
    std::vector<float> read(static_cast<size_t>(d));
    for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
      const std::vector<float> x = RandomFloats(random, read.size());
      std::byte* row = bytes.data() + r * row_bytes;
      std::byte* param = params.data() + r * param_bytes;
      EncodeKvRow(role, type, x.data(), d, row, param);
      DecodeKvRow(role, type, row, param, d, read.data());
      std::copy(read.begin(), read.end(), values.begin() + static_cast<ptrdiff_t>(r) * d);
    }
  }
  size_t row_bytes, param_bytes;
  std::vector<std::byte> bytes, params;
  std::vector<double> values;
};

/// Sequences of random rows, and a device's copies of them in pages that lie anywhere.
class DeviceSequences {
 public:
  DeviceSequences(std::mt19937& random, KvTypes stored, const AttentionShape& shape,
                  std::vector<int64_t> rows)
      : shape_(shape), rows_(std::move(rows)) {
    layout_ = KvPageLayout::For(
        stored, KvType::kF32, shape.kv_heads, shape.d,
        KvPageLayout::BytesForRowsPerPage(stored, shape.kv_heads, shape.d, shape.rows_per_page));
    for (int64_t n : rows_) {
      k_.emplace_back(random, KvRole::kKey, stored.k, shape.kv_heads * n, shape.d);
      v_.emplace_back(random, KvRole::kValue, stored.v, shape.kv_heads * n, shape.d);
    }
    q_ = RandomFloats(random, rows_.size() * static_cast<size_t>(shape.heads * shape.d));
  }

  struct Result {
    std::vector<float> out;
    std::vector<float> mass;  // all sequences, [kv_heads, rows] each; unwritten ones are NaN
    bool operator==(const Result& other) const {
      return SameBits(out, other.out) && SameBits(mass, other.mass);
    }
    static bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
      return a.size() == b.size() &&
             (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
    }
  };

  /// Sequences [first, last), pages shuffled by `seed`, bounds looser by `slack` rows.
  Result Run(Device* device, size_t first, size_t last, bool mass, uint32_t seed,
             int64_t slack = 0) const {
    const size_t n = last - first;
    const int64_t kv_heads = shape_.kv_heads;
    std::vector<int64_t> first_page(n + 1);
    int64_t mass_floats = 0, most = 0;
    for (size_t s = 0; s < n; ++s) {
      first_page[s + 1] = first_page[s] + layout_.PagesFor(rows_[first + s]);
      mass_floats += kv_heads * rows_[first + s];
      most = std::max(most, rows_[first + s]);
    }
    std::vector<size_t> order(static_cast<size_t>(first_page[n]));
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    std::vector<std::byte> arena(order.size() * layout_.page_bytes, std::byte{0xff});
    for (size_t s = 0; s < n; ++s) Fill(first + s, order.data() + first_page[s], arena);
    const DeviceArray<std::byte> arena_there(device, arena);
    std::vector<std::byte*> pages;
    for (size_t p : order) pages.push_back(arena_there.get() + p * layout_.page_bytes);
    const DeviceArray<std::byte*> pages_there(device, pages);
    const DeviceArray<float> mass_there(device, static_cast<size_t>(mass_floats));
    std::vector<PagedSequence> table(n);
    int64_t mass_at = 0;
    for (size_t s = 0; s < n; ++s) {
      table[s].pages = pages_there.get() + first_page[s];
      table[s].rows = rows_[first + s];
      if (mass) {
        table[s].mass_first_row = kFirstMassRows[first + s];
        table[s].mass = mass_there.get() + mass_at + table[s].mass_first_row;
        table[s].mass_stride = rows_[first + s];
      }
      mass_at += kv_heads * rows_[first + s];
    }
    const DeviceArray<PagedSequence> table_there(device, table);
    const size_t floats = static_cast<size_t>(shape_.heads * shape_.d);
    const DeviceArray<float> q(
        device, std::vector<float>(q_.begin() + static_cast<ptrdiff_t>(first * floats),
                                   q_.begin() + static_cast<ptrdiff_t>(last * floats)));
    const DeviceArray<float> out(device, n * floats);
    DecodeAttentionArgs args;
    args.layout = layout_;
    args.heads = shape_.heads;
    args.sequences = static_cast<int>(n);
    args.sequence = table_there.get();
    args.q = q.get();
    args.out = out.get();
    const absl::Status status = device->DecodeAttention(args, {most + slack, mass});
    EXPECT_TRUE(status.ok()) << status.ToString();
    return {out.Read(), mass_there.Read()};
  }
  Result Run(Device* device, bool mass) const { return Run(device, 0, rows_.size(), mass, 1); }

  /// Probabilities of a query head's rows.
  std::vector<double> Probabilities(size_t s, int head) const {
    const int64_t n = rows_[s];
    std::vector<double> p(static_cast<size_t>(n));
    for (int64_t r = 0; r < n; ++r) {
      double dot = 0;
      for (int c = 0; c < shape_.d; ++c) {
        dot += static_cast<double>(
                   q_[(s * static_cast<size_t>(shape_.heads) + static_cast<size_t>(head)) *
                          static_cast<size_t>(shape_.d) +
                      static_cast<size_t>(c)]) *
               k_[s].values[Element(s, head, r, c)];
      }
      p[static_cast<size_t>(r)] = dot / std::sqrt(shape_.d);
    }
    const double max = n > 0 ? *std::max_element(p.begin(), p.end()) : 0;
    double sum = 0;
    for (double& x : p) sum += x = std::exp(x - max);
    for (double& x : p) x /= sum;
    return p;
  }

  /// Checks outputs (relative to `scale`, the size of the values) and, where asked for, masses.
  void Compare(const Result& result, double tolerance, bool mass, double scale = 1) const {
    size_t mass_at = 0;
    for (size_t s = 0; s < rows_.size(); ++s) {
      std::vector<double> masses(static_cast<size_t>(shape_.kv_heads * rows_[s]));
      for (int h = 0; h < shape_.heads; ++h) {
        const std::vector<double> p = Probabilities(s, h);
        const int kv_head = h / (shape_.heads / shape_.kv_heads);
        for (size_t r = 0; r < p.size(); ++r) {
          masses[static_cast<size_t>(kv_head * rows_[s]) + r] += p[r];
        }
        for (int c = 0; c < shape_.d; ++c) {
          double expected = 0;
          for (size_t r = 0; r < p.size(); ++r) {
            if (p[r] > 0)
              expected += p[r] * v_[s].values[Element(s, h, static_cast<int64_t>(r), c)];
          }
          const size_t at = (s * static_cast<size_t>(shape_.heads) + static_cast<size_t>(h)) *
                                static_cast<size_t>(shape_.d) +
                            static_cast<size_t>(c);
          ASSERT_NEAR(result.out[at], expected, tolerance * scale)
              << "sequence " << s << " head " << h << " lane " << c << " of " << shape_.d;
        }
      }
      for (size_t i = 0; i < masses.size(); ++i, ++mass_at) {
        const int64_t row = static_cast<int64_t>(i) % rows_[s];
        if (mass && row >= kFirstMassRows[s]) {
          ASSERT_NEAR(result.mass[mass_at], masses[i], 2 * tolerance) << "mass of row " << row;
        } else {
          ASSERT_TRUE(std::isnan(result.mass[mass_at])) << "mass written where none was asked for";
        }
      }
    }
  }

  size_t Element(size_t s, int head, int64_t row, int c) const {
    const int kv_head = head / (shape_.heads / shape_.kv_heads);
    return static_cast<size_t>((kv_head * rows_[s] + row) * shape_.d + c);
  }

  const AttentionShape shape_;
  const std::vector<int64_t> rows_;
  KvPageLayout layout_;
  std::vector<StoredRows> k_, v_;
  std::vector<float> q_;

 private:
  void Fill(size_t s, const size_t* order, std::vector<std::byte>& arena) const {
    const auto put = [&](const StoredRows& from, const KvSide& side, size_t row, int h, int in_page,
                         std::byte* page) {
      std::copy_n(from.bytes.begin() + static_cast<ptrdiff_t>(row * from.row_bytes), from.row_bytes,
                  page + layout_.RowOffset(side, h, in_page));
      std::copy_n(from.params.begin() + static_cast<ptrdiff_t>(row * from.param_bytes),
                  from.param_bytes, page + layout_.ParamOffset(side, h, in_page));
    };
    for (int64_t r = 0; r < rows_[s]; ++r) {
      std::byte* page = &arena[order[r / layout_.rows_per_page] * layout_.page_bytes];
      const int in_page = static_cast<int>(r % layout_.rows_per_page);
      for (int h = 0; h < shape_.kv_heads; ++h) {
        const auto row = static_cast<size_t>(h * rows_[s] + r);
        put(k_[s], layout_.k, row, h, in_page, page);
        put(v_[s], layout_.v, row, h, in_page, page);
      }
    }
  }
};

}  // namespace ripplekv
