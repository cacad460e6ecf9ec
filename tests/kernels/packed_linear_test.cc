#include "kernels/packed_linear.h"

#include <gtest/gtest.h>

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
    for (int64_t cols : {32, 576, 800, 1568}) cases.push_back({type, 13, cols});
    if (block_elements(type) == 1) {
      for (int64_t cols : {1, 5, 16, 31, 45, 767, 769, 1539}) cases.push_back({type, 9, cols});
    }
  }
  return cases;
}

TEST(PackedLinearTest, AgreesWithDoublePrecision) {
  std::mt19937 random(2);
  for (const Case& c : Cases()) {
    const RandomMatrix w(random, c.type, c.rows, c.cols);
    std::vector<float> values(static_cast<size_t>(c.rows * c.cols));
    ExpandRows(w.view, 0, c.rows, values.data(), Isa::kBase);
    for (int m : {1, 2, 5, 16}) {
      const std::vector<float> x = RandomFloats(random, static_cast<size_t>(m * c.cols));
      for (Isa isa : SupportedIsas()) {
        std::vector<float> y(static_cast<size_t>(m * c.rows), NAN);
        PackedLinear(w.view, x.data(), c.cols, m, y.data(), c.rows, 0, c.rows, isa);
        for (int i = 0; i < m; ++i) {
          for (int64_t r = 0; r < c.rows; ++r) {
            double sum = 0, size = 0;
            for (int64_t k = 0; k < c.cols; ++k) {
              const double term = static_cast<double>(values[static_cast<size_t>(r * c.cols + k)]) *
                                  x[static_cast<size_t>(i * c.cols + k)];
              sum += term;
              size += std::abs(term);
            }
            ASSERT_NEAR(y[static_cast<size_t>(i * c.rows + r)], sum, 1e-6 * size + 1e-12)
                << name(c.type) << " " << IsaName(isa) << " cols " << c.cols << " m " << m;
          }
        }
      }
    }
  }
}

// y of one row of x, alone, whole range, aligned: what every other way must repeat.
std::vector<float> Alone(const PackedMatrix& w, const float* x, Isa isa) {
  std::vector<float> y(static_cast<size_t>(w.rows));
  PackedLinear(w, x, w.cols, 1, y.data(), w.rows, 0, w.rows, isa);
  return y;
}

TEST(PackedLinearTest, BitsDoNotDependOnRowsStridesAlignmentOrRange) {
  std::mt19937 random(3);
  for (const Case& c : Cases()) {
    const RandomMatrix w(random, c.type, c.rows, c.cols, 1);
    const int64_t x_stride = c.cols + 3;
    const int64_t y_stride = c.rows + 5;
    const std::vector<float> x = RandomFloats(random, static_cast<size_t>(16 * x_stride + 1));
    for (Isa isa : SupportedIsas()) {
      for (int shift : {0, 1}) {
        std::vector<std::vector<float>> expected;
        for (int i = 0; i < 16; ++i) {
          const float* row = x.data() + shift + i * x_stride;
          expected.push_back(Alone(w.view, std::vector<float>(row, row + c.cols).data(), isa));
        }
        for (int m = 1; m <= 16; ++m) {
          std::vector<float> y(static_cast<size_t>(m * y_stride + 1), -3);
          const int64_t cut = static_cast<int64_t>(random() % static_cast<uint32_t>(c.rows + 1));
          PackedLinear(w.view, x.data() + shift, x_stride, m, y.data() + 1, y_stride, 0, cut, isa);
          PackedLinear(w.view, x.data() + shift, x_stride, m, y.data() + 1, y_stride, cut, c.rows,
                       isa);
          for (int i = 0; i < m; ++i) {
            for (int64_t r = 0; r < y_stride; ++r) {
              const float expected_value =
                  r < c.rows ? expected[static_cast<size_t>(i)][static_cast<size_t>(r)] : -3;
              ASSERT_EQ(y[static_cast<size_t>(1 + i * y_stride + r)], expected_value)
                  << name(c.type) << " " << IsaName(isa) << " cols " << c.cols << " m " << m
                  << " cut " << cut;
            }
          }
        }
      }
    }
  }
}

TEST(PackedLinearTest, BitsDoNotDependOnThreads) {
  std::mt19937 random(4);
  const RandomMatrix w(random, TensorType::kQ4_1, 301, 576);
  const std::vector<float> x = RandomFloats(random, 16 * 576);
  for (int m : {1, 7, 16}) {
    std::vector<float> expected(static_cast<size_t>(m) * 301);
    PackedLinear(w.view, x.data(), 576, m, expected.data(), 301, 0, 301);
    for (int threads = 1; threads <= 4; ++threads) {
      ThreadPool pool(threads);
      for (int64_t grain : {1, 5, 16, 64}) {
        std::vector<float> y(expected.size());
        pool.ParallelFor(301, grain, [&](int64_t begin, int64_t end) {
          PackedLinear(w.view, x.data(), 576, m, y.data(), 301, begin, end);
        });
        ASSERT_EQ(y, expected) << threads << " threads, grain " << grain;
      }
    }
  }
}

// Both have fused multiply-add and the same sixteen lanes.
TEST(PackedLinearTest, TheWideInstructionSetsAgreeBitForBit) {
  if (!IsaSupported(Isa::kV4)) GTEST_SKIP() << "no AVX-512 here";
  std::mt19937 random(5);
  for (const Case& c : Cases()) {
    const RandomMatrix w(random, c.type, c.rows, c.cols);
    const std::vector<float> x = RandomFloats(random, static_cast<size_t>(c.cols));
    EXPECT_EQ(Alone(w.view, x.data(), Isa::kV3), Alone(w.view, x.data(), Isa::kV4)) << name(c.type);
  }
}

}  // namespace
}  // namespace ripplekv
