#include "kernels/panel_linear.h"

#include <gtest/gtest.h>

#include <string>

#include "kernels/thread_pool.h"
#include "tests/kernels/random.h"

namespace ripplekv {
namespace {

struct Case {
  TensorType type;
  int64_t rows, cols;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (TensorType type : kTensorTypes) {
    for (int64_t cols : {32, 96, 576, 800}) cases.push_back({type, 37, cols});
    for (int64_t rows : {1, 15, 16, 17}) cases.push_back({type, rows, 64});
    if (block_elements(type) > 1) continue;
    for (int64_t cols : {1, 5, 16, 31, 33, 45, 63, 769}) cases.push_back({type, 21, cols});
  }
  return cases;
}

// A way to compute: every instruction set with exact activations, and the rounded ones.
struct Way {
  Isa isa;
  ActivationType type;
};

std::vector<Way> Ways() {
  std::vector<Way> ways;
  for (Isa isa : SupportedIsas()) {
    ways.push_back({isa, ActivationType::kF32});
    if (FastestActivations(isa) != ActivationType::kF32) {
      ways.push_back({isa, FastestActivations(isa)});
    }
  }
  return ways;
}

bool Rounds(TensorType type, Way way) {
  return way.type == ActivationType::kInt16 && block_elements(type) > 1;
}

std::string Describe(const Case& c, Way way) {
  return std::string(name(c.type)) + " [" + std::to_string(c.rows) + ", " + std::to_string(c.cols) +
         "] " + IsaName(way.isa) + (way.type == ActivationType::kInt16 ? " int16" : " fp32");
}

/// Activations with room for the quantised form.
class Input {
 public:
  Input(const float* x, int64_t x_stride, int m, const Case& c, Way way)
      : storage_(static_cast<std::byte*>(std::aligned_alloc(
                     64, static_cast<size_t>(quantized_input_bytes(m, c.cols) + 63) / 64 * 64)),
                 &std::free),
        input_{x, x_stride, m, c.cols, way.type, storage_.get()},
        rounds_(Rounds(c.type, way)) {}

  const LinearInput& Quantized() {
    if (rounds_) QuantizeInput(input_, 0, input_.m, 0, input_.cols / 32);
    return input_;
  }
  /// In four parts.
  const LinearInput& QuantizedInParts() {
    if (!rounds_) return input_;
    const int64_t groups = input_.cols / 32;
    for (int row_half : {1, 0}) {
      for (int group_half : {0, 1}) {
        QuantizeInput(input_, row_half ? input_.m / 2 : 0, row_half ? input_.m : input_.m / 2,
                      group_half ? groups / 2 : 0, group_half ? groups : groups / 2);
      }
    }
    return input_;
  }

 private:
  std::unique_ptr<std::byte, decltype(&std::free)> storage_;
  LinearInput input_;
  bool rounds_;
};

/// y of one row of x, alone, whole range, aligned: what every other way must repeat.
std::vector<float> Alone(const Case& c, const Panels& w, const float* x, Way way) {
  const std::vector<float> row(x, x + c.cols);
  Input input(row.data(), c.cols, 1, c, way);
  std::vector<float> y(static_cast<size_t>(c.rows), NAN);
  PanelLinear(w.view, input.Quantized(), y.data(), c.rows, false, 0, w.view.panels(), way.isa);
  return y;
}

/// The result in double precision and how far a way of computing may be from it.
struct Expected {
  double sum = 0;
  double magnitude = 0;  // sum of the sizes of everything that is added
  double rounding = 0;   // what rounding the activations to 16 bits may change
};

Expected Reference(const Case& c, const RandomMatrix& w, const std::vector<float>& values,
                   int64_t r, const float* x) {
  Expected e;
  double largest = 0, weights = 0;
  for (int64_t k = 0; k < c.cols; ++k) {
    const double value = values[static_cast<size_t>(r * c.cols + k)];
    // The minimum of Q4_1 is added apart from d * q.
    double minimum = 0;
    if (c.type == TensorType::kQ4_1) {
      uint16_t m;
      std::memcpy(&m, w.view.data + r * w.view.row_bytes + k / 32 * 20 + 2, 2);
      minimum = std::ldexp(1024 + (m & 1023), (m >> 10 & 31) - 25);
    }
    e.sum += value * x[k];
    e.magnitude += (std::abs(value) + 2 * minimum) * std::abs(x[k]);
    largest = std::max(largest, std::abs(static_cast<double>(x[k])));
    weights += std::abs(value);
    if (k % 32 == 31 || k + 1 == c.cols) {
      e.rounding += weights * std::max(largest, 0x1p-96) / 32639 / 2;
      largest = weights = 0;
    }
  }
  return e;
}

TEST(PanelLinearTest, AgreesWithDoublePrecision) {
  std::mt19937 random(2);
  for (const Case& c : Cases()) {
    const RandomMatrix w(random, c.type, c.rows, c.cols);
    const Panels panels(w.view);
    std::vector<float> values(static_cast<size_t>(c.rows * c.cols));
    ExpandRows(w.view, 0, c.rows, values.data(), Isa::kBase);
    for (float scale : {1.0f, 1e30f, 1e-30f, 1e-40f}) {
      for (int m = 1; m <= 16; m += scale == 1 ? 1 : 7) {
        std::vector<float> x = RandomFloats(random, static_cast<size_t>(m * c.cols), scale);
        for (size_t i = 5; i < x.size(); i += 97) x[i] *= 60;  // outliers
        for (Way way : Ways()) {
          std::vector<float> y(static_cast<size_t>(m * c.rows), NAN);
          Input input(x.data(), c.cols, m, c, way);
          PanelLinear(panels.view, input.Quantized(), y.data(), c.rows, false, 0,
                      panels.view.panels(), way.isa);
          for (int i = 0; i < m; ++i) {
            for (int64_t r = 0; r < c.rows; ++r) {
              const Expected e = Reference(c, w, values, r, x.data() + i * c.cols);
              const double bound = 1e-6 * e.magnitude + (Rounds(c.type, way) ? e.rounding : 0) +
                                   static_cast<double>(c.cols) * 0x1p-149;
              ASSERT_NEAR(y[static_cast<size_t>(i * c.rows + r)], e.sum, bound)
                  << Describe(c, way) << " m " << m << " scale " << scale;
            }
          }
        }
      }
    }
  }
}

// What the 16 bits cost on ordinary activations, as a whole.
TEST(PanelLinearTest, RoundingActivationsCostsAThirtyThousandthAtMost) {
  if (!IsaSupported(Isa::kV4Dot)) GTEST_SKIP() << "no dot products of bytes here";
  std::mt19937 random(6);
  for (TensorType type : {TensorType::kQ4_0, TensorType::kQ4_1, TensorType::kQ8_0}) {
    const Case c{type, 256, 1536};
    const RandomMatrix w(random, type, c.rows, c.cols);
    const Panels panels(w.view);
    std::vector<float> values(static_cast<size_t>(c.rows * c.cols));
    ExpandRows(w.view, 0, c.rows, values.data());
    const std::vector<float> x = RandomFloats(random, static_cast<size_t>(c.cols));
    const std::vector<float> y = Alone(c, panels, x.data(), {Isa::kV4Dot, ActivationType::kInt16});
    double error = 0, size = 0;
    for (int64_t r = 0; r < c.rows; ++r) {
      const double sum = Reference(c, w, values, r, x.data()).sum;
      error += std::pow(y[static_cast<size_t>(r)] - sum, 2);
      size += sum * sum;
    }
    EXPECT_LT(std::sqrt(error / size), 3e-5) << name(type);
    EXPECT_GT(std::sqrt(error / size), 1e-7) << name(type) << ": nothing was rounded";
  }
}

TEST(PanelLinearTest, BitsDoNotDependOnRowsStridesAlignmentOrRange) {
  std::mt19937 random(3);
  for (const Case& c : Cases()) {
    const RandomMatrix w(random, c.type, c.rows, c.cols, 1);
    const Panels panels(w.view);
    const int64_t x_stride = c.cols + 3;
    const int64_t y_stride = c.rows + 5;
    const std::vector<float> x = RandomFloats(random, static_cast<size_t>(16 * x_stride + 1));
    for (Way way : Ways()) {
      for (int shift : {0, 1}) {
        std::vector<std::vector<float>> expected;
        for (int i = 0; i < 16; ++i) {
          expected.push_back(Alone(c, panels, x.data() + shift + i * x_stride, way));
        }
        for (int m = 1; m <= 16; ++m) {
          for (bool add : {false, true}) {
            std::vector<float> y(static_cast<size_t>(m * y_stride + 1), -3);
            Input input(x.data() + shift, x_stride, m, c, way);
            const LinearInput& quantized = input.QuantizedInParts();
            const int64_t n = panels.view.panels();
            const int64_t cut = static_cast<int64_t>(random() % static_cast<uint32_t>(n + 1));
            PanelLinear(panels.view, quantized, y.data() + 1, y_stride, add, cut, n, way.isa);
            PanelLinear(panels.view, quantized, y.data() + 1, y_stride, add, 0, cut, way.isa);
            for (int i = 0; i < m; ++i) {
              for (int64_t r = 0; r < y_stride; ++r) {
                float value = -3;
                if (r < c.rows) {
                  const float sum = expected[static_cast<size_t>(i)][static_cast<size_t>(r)];
                  value = add ? value + sum : sum;
                }
                ASSERT_EQ(y[static_cast<size_t>(1 + i * y_stride + r)], value)
                    << Describe(c, way) << " m " << m << " cut " << cut << " add " << add;
              }
            }
          }
        }
      }
    }
  }
}

TEST(PanelLinearTest, BitsDoNotDependOnThreads) {
  std::mt19937 random(4);
  const Case c{TensorType::kQ4_1, 301, 576};
  const RandomMatrix w(random, c.type, c.rows, c.cols);
  const Panels panels(w.view);
  const std::vector<float> x = RandomFloats(random, 16 * 576);
  for (Way way : Ways()) {
    for (int m : {1, 7, 16}) {
      Input input(x.data(), c.cols, m, c, way);
      const LinearInput& quantized = input.Quantized();
      std::vector<float> expected(static_cast<size_t>(m) * 301);
      PanelLinear(panels.view, quantized, expected.data(), 301, false, 0, panels.view.panels(),
                  way.isa);
      for (int threads = 1; threads <= 4; ++threads) {
        ThreadPool pool(threads);
        for (int64_t grain : {1, 3, 16}) {
          std::vector<float> y(expected.size());
          pool.ParallelFor(panels.view.panels(), grain, [&](int64_t begin, int64_t end) {
            PanelLinear(panels.view, quantized, y.data(), 301, false, begin, end, way.isa);
          });
          ASSERT_EQ(y, expected) << threads << " threads, grain " << grain;
        }
      }
    }
  }
}

TEST(PanelLinearTest, InfinitiesAndNansSpoilTheirRowAndNoOther) {
  std::mt19937 random(5);
  for (const Case& c : Cases()) {
    const RandomMatrix w(random, c.type, c.rows, c.cols);
    const Panels panels(w.view);
    for (float special : {INFINITY, -INFINITY, NAN}) {
      std::vector<float> x = RandomFloats(random, static_cast<size_t>(3 * c.cols));
      x[static_cast<size_t>(
          c.cols + static_cast<int64_t>(random() % static_cast<uint32_t>(c.cols)))] = special;
      for (Way way : Ways()) {
        std::vector<float> y(static_cast<size_t>(3 * c.rows), 0);
        Input input(x.data(), c.cols, 3, c, way);
        PanelLinear(panels.view, input.Quantized(), y.data(), c.rows, false, 0,
                    panels.view.panels(), way.isa);
        for (int64_t i = 0; i < 3 * c.rows; ++i) {
          ASSERT_EQ(std::isfinite(y[static_cast<size_t>(i)]), i / c.rows != 1)
              << Describe(c, way) << " " << special;
        }
      }
    }
  }
}

// Both have fused multiply-add and the same sixteen lanes.
TEST(PanelLinearTest, TheWideInstructionSetsAgreeBitForBit) {
  if (!IsaSupported(Isa::kV4)) GTEST_SKIP() << "no AVX-512 here";
  std::mt19937 random(7);
  for (const Case& c : Cases()) {
    const RandomMatrix w(random, c.type, c.rows, c.cols);
    const Panels panels(w.view);
    const std::vector<float> x = RandomFloats(random, static_cast<size_t>(c.cols));
    EXPECT_EQ(Alone(c, panels, x.data(), {Isa::kV3, ActivationType::kF32}),
              Alone(c, panels, x.data(), {Isa::kV4, ActivationType::kF32}))
        << name(c.type);
  }
}

}  // namespace
}  // namespace ripplekv
