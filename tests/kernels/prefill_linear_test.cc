#include "kernels/prefill_linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "kernels/rope.h"
#include "tests/kernels/random.h"

namespace ripplekv {
namespace {

constexpr int kPanel = kPrefillLinearRows;

/// bf16 numbers that end where their allocation ends, so that AddressSanitizer sees a read beyond
/// them; `shift` elements of misalignment.
struct Array {
  Array(std::mt19937& random, int64_t n, float scale, int shift = 0)
      : data(new uint16_t[static_cast<size_t>(n + shift)]), shift(shift) {
    const std::vector<float> x = RandomFloats(random, static_cast<size_t>(n), scale);
    for (int64_t i = 0; i < n; ++i) get()[i] = FloatToBf16(x[static_cast<size_t>(i)]);
  }
  uint16_t* get() const { return data.get() + shift; }
  double operator[](int64_t i) const { return static_cast<double>(Bf16ToFloat(get()[i])); }
  std::unique_ptr<uint16_t[]> data;
  int shift;
};

struct Weights {
  Weights(std::mt19937& random, int64_t rows, int64_t cols, int shift = 0)
      : rows(rows), cols(cols), panels(random, rows * cols, 0.3f, shift) {}
  double At(int64_t r, int64_t c) const {
    return panels[((r / kPanel * (cols / 2) + c / 2) * kPanel + r % kPanel) * 2 + c % 2];
  }
  /// Token t's product and the sum of its terms' magnitudes.
  std::pair<double, double> Times(const Array& x, int64_t t, int64_t r) const {
    double sum = 0, magnitude = 0;
    for (int64_t c = 0; c < cols; ++c) {
      const double term = At(r, c) * x[t * cols + c];
      sum += term;
      magnitude += std::abs(term);
    }
    return {sum, magnitude};
  }
  int64_t rows, cols;
  Array panels;
};

/// Of a sum of `cols` terms in fp32.
double SumBound(int64_t cols, double magnitude) {
  return 0x1p-24 * static_cast<double>(cols) * magnitude;
}
constexpr double kBf16 = 0x1p-8;  // half a unit in the last place, relative to the number below

class PrefillLinearTest : public ::testing::TestWithParam<Isa> {
 protected:
  const Isa isa_ = GetParam();
  std::mt19937 random_{5};
};
INSTANTIATE_TEST_SUITE_P(, PrefillLinearTest, ::testing::ValuesIn(SupportedIsas()));

TEST_P(PrefillLinearTest, SumsAgreeWithDoubleForAllTokenCounts) {
  for (int tokens = 1; tokens <= 97; tokens = tokens < 30 ? tokens + 1 : tokens + 13) {
    const int64_t cols = 2 * (1 + tokens % 7 * 19), rows = kPanel * (1 + tokens % 3);
    const Weights w(random_, rows, cols, tokens % 5);
    const Array x(random_, tokens * cols, 1, tokens % 3);
    const int64_t stride = rows + tokens % 4;
    const std::vector<float> before = RandomFloats(random_, static_cast<size_t>(tokens * stride));
    std::vector<float> out = before;
    PrefillLinearAdd({tokens, cols, x.get()}, w.panels.get(), out.data(), stride, 0, rows / kPanel,
                     isa_);
    // The plain product leaves out the last panel's outputs from `last` on.
    const int64_t last = rows - tokens % kPanel;
    std::vector<float> plain = before;
    PrefillLinear({tokens, cols, x.get()}, w.panels.get(), last, plain.data(), stride, 0,
                  rows / kPanel, isa_);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t r = 0; r < stride; ++r) {
        const size_t i = static_cast<size_t>(t * stride + r);
        if (r < last) {
          const auto [sum, magnitude] = w.Times(x, t, r);
          ASSERT_NEAR(static_cast<double>(plain[i]), sum, SumBound(cols, magnitude));
        } else {
          ASSERT_EQ(plain[i], before[i]);
        }
        if (r >= rows) {
          ASSERT_EQ(out[i], before[i]);
          continue;
        }
        const auto [sum, magnitude] = w.Times(x, t, r);
        const double expected = static_cast<double>(before[i]) + sum;
        ASSERT_NEAR(static_cast<double>(out[i]), expected,
                    SumBound(cols, magnitude) + 0x1p-24 * std::abs(expected))
            << tokens << " tokens, " << rows << " x " << cols << ", token " << t << " output " << r;
      }
    }
  }
}

TEST_P(PrefillLinearTest, SwiGluAgreesWithDouble) {
  for (float scale : {0.05f, 1.0f, 30.0f}) {
    const int tokens = 41;
    const int64_t cols = 70, rows = 48;
    const Weights gate(random_, rows, cols), up(random_, rows, cols);
    const Array x(random_, tokens * cols, scale);
    std::vector<uint16_t> out(static_cast<size_t>(tokens * rows));
    PrefillLinearSwiGlu({tokens, cols, x.get()}, gate.panels.get(), up.panels.get(), out.data(),
                        rows, 0, 3, isa_);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t r = 0; r < rows; ++r) {
        const auto [g, g_magnitude] = gate.Times(x, t, r);
        const auto [u, u_magnitude] = up.Times(x, t, r);
        const double silu = g / (1 + std::exp(-g));
        // silu's slope is below 1.1.
        const double bound = kBf16 * std::abs(silu * u) +
                             1.1 * SumBound(cols, g_magnitude) * std::abs(u) +
                             SumBound(cols, u_magnitude) * std::abs(silu) + 1e-36;
        ASSERT_NEAR(static_cast<double>(Bf16ToFloat(out[static_cast<size_t>(t * rows + r)])),
                    silu * u, bound)
            << scale << " token " << t << " output " << r;
      }
    }
  }
}

TEST_P(PrefillLinearTest, HeadsAreRotatedAndScattered) {
  for (int d : {16, 48, 64, 128, 256}) {
    for (int64_t heads : {1, 3}) {
      const int tokens = 29;
      const int64_t cols = 66, rows = heads * d;
      const Weights w(random_, rows, cols);
      const Array x(random_, tokens * cols, 1);
      std::vector<float> inv_freq;
      for (int i = 0; i < d / 2; ++i) inv_freq.push_back(std::pow(10000.0f, -2.0f * i / d));
      std::vector<float> rope(static_cast<size_t>(tokens * d));
      for (int t = 0; t < tokens; ++t) {
        float* const row = rope.data() + t * d;
        RopeAngles(100 + t, inv_freq.data(), d / 2, row, row + d / 2);
      }
      const int64_t token_stride = d + 3, head_stride = tokens * token_stride + 5;
      for (bool rotated : {false, true}) {
        std::vector<uint16_t> out(static_cast<size_t>(heads * head_stride), 0x7fc0);
        const PrefillHeads target = {d, out.data(), head_stride, token_stride,
                                     rotated ? rope.data() : nullptr};
        PrefillLinearHeads({tokens, cols, x.get()}, w.panels.get(), target, 0, rows / kPanel, isa_);
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t r = 0; r < rows; ++r) {
            const int64_t c = r % d, i = c / 2;
            auto [expected, magnitude] = w.Times(x, t, r);
            if (rotated) {
              const auto cosine = static_cast<double>(rope[static_cast<size_t>(t * d + i)]);
              const auto sine = static_cast<double>(rope[static_cast<size_t>(t * d + d / 2 + i)]);
              const auto [other, other_magnitude] = w.Times(x, t, r ^ 1);
              expected = expected * cosine + (c % 2 == 0 ? -other : other) * sine;
              magnitude += other_magnitude;
            }
            const size_t at = static_cast<size_t>(r / d * head_stride + t * token_stride + c);
            ASSERT_NEAR(static_cast<double>(Bf16ToFloat(out[at])), expected,
                        kBf16 * std::abs(expected) + SumBound(cols + 2, magnitude))
                << d << " token " << t << " output " << r;
            out[at] = 0x7fc0;
          }
        }
        // Nothing else was written.
        EXPECT_TRUE(std::all_of(out.begin(), out.end(), [](uint16_t v) { return v == 0x7fc0; }));
      }
    }
  }
}

/// Tokens alone, panels alone and other alignments give the same bits.
TEST_P(PrefillLinearTest, BitsDoNotDependOnTheOtherTokensPanelsOrPlacement) {
  const int tokens = 53;
  const int64_t cols = 194, rows = 5 * kPanel;
  const Weights w(random_, rows, cols), up(random_, rows, cols);
  const Array x(random_, tokens * cols, 1);
  std::vector<float> sums(static_cast<size_t>(tokens * rows));
  std::vector<uint16_t> glu(sums.size()), heads(sums.size());
  const PrefillHeads target = {kPanel, heads.data(), kPanel, rows, nullptr};
  const PrefillLinearArgs args = {tokens, cols, x.get()};
  PrefillLinearAdd(args, w.panels.get(), sums.data(), rows, 0, 5, isa_);
  PrefillLinearSwiGlu(args, w.panels.get(), up.panels.get(), glu.data(), rows, 0, 5, isa_);
  PrefillLinearHeads(args, w.panels.get(), target, 0, 5, isa_);

  Array shifted(random_, rows * cols, 1, 1);
  std::copy_n(w.panels.get(), rows * cols, shifted.get());
  for (int size : {1, 3, 17}) {
    std::vector<float> sums2(sums.size());
    std::vector<uint16_t> glu2(sums.size()), heads2(sums.size());
    for (int t = 0; t < tokens; t += size) {
      const int64_t offset = t * rows;
      const PrefillLinearArgs part = {std::min(size, tokens - t), cols, x.get() + t * cols};
      PrefillHeads there = target;
      there.out = heads2.data() + offset;
      for (int64_t panel = 0; panel < 5; ++panel) {
        PrefillLinearAdd(part, shifted.get(), sums2.data() + offset, rows, panel, panel + 1, isa_);
        PrefillLinearSwiGlu(part, shifted.get(), up.panels.get(), glu2.data() + offset, rows, panel,
                            panel + 1, isa_);
        PrefillLinearHeads(part, shifted.get(), there, panel, panel + 1, isa_);
      }
    }
    EXPECT_EQ(sums2, sums) << size;
    EXPECT_EQ(glu2, glu) << size;
    EXPECT_EQ(heads2, heads) << size;
  }
}

/// Infinities and numbers that are none stay in their own token.
TEST_P(PrefillLinearTest, InfinitiesSpoilTheirOwnTokenOnly) {
  const int tokens = 30;
  const int64_t cols = 64, rows = 32;
  const Weights w(random_, rows, cols);
  const Array x(random_, tokens * cols, 1);
  std::vector<float> clean(static_cast<size_t>(tokens * rows)), out(clean.size());
  PrefillLinearAdd({tokens, cols, x.get()}, w.panels.get(), clean.data(), rows, 0, 2, isa_);
  x.get()[7 * cols + 5] = FloatToBf16(std::numeric_limits<float>::infinity());
  x.get()[19 * cols + 63] = FloatToBf16(std::numeric_limits<float>::quiet_NaN());
  PrefillLinearAdd({tokens, cols, x.get()}, w.panels.get(), out.data(), rows, 0, 2, isa_);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t r = 0; r < rows; ++r) {
      const size_t i = static_cast<size_t>(t * rows + r);
      if (t == 7) {
        EXPECT_EQ(out[i], w.At(r, 5) < 0 ? -std::numeric_limits<float>::infinity()
                                         : std::numeric_limits<float>::infinity());
      } else if (t == 19) {
        EXPECT_TRUE(std::isnan(out[i]));
      } else {
        EXPECT_EQ(out[i], clean[i]);
      }
    }
  }
}

TEST_P(PrefillLinearTest, NoTokensOrPanelsWriteNothing) {
  PrefillLinearAdd({0, 64, nullptr}, nullptr, nullptr, 0, 0, 3, isa_);
  const Array x(random_, 128, 1);
  PrefillLinearAdd({2, 64, x.get()}, nullptr, nullptr, 0, 1, 1, isa_);
}

}  // namespace
}  // namespace ripplekv
