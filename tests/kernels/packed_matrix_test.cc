#include "kernels/packed_matrix.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/kernels/random.h"

namespace ripplekv {
namespace {

constexpr int64_t kGoldenRows = 5;
constexpr int64_t kGoldenCols = 96;

// Against gguf-py (make_dequantize_golden.py): equal, not close.
TEST(PackedMatrixTest, ExpandsAsGgufDoes) {
  std::ifstream file(RIPPLEKV_SOURCE_DIR "/tests/kernels/golden/dequantize.bin", std::ios::binary);
  ASSERT_TRUE(file) << "tests/kernels/golden/dequantize.bin is missing";
  for (TensorType type : kTensorTypes) {
    std::vector<std::byte> packed(static_cast<size_t>(row_bytes(type, kGoldenCols) * kGoldenRows));
    std::vector<float> expected(kGoldenRows * kGoldenCols);
    file.read(reinterpret_cast<char*>(packed.data()), static_cast<std::streamsize>(packed.size()));
    file.read(reinterpret_cast<char*>(expected.data()),
              static_cast<std::streamsize>(expected.size() * sizeof(float)));
    ASSERT_TRUE(file);
    const PackedMatrix w{type, kGoldenRows, kGoldenCols, packed.data(),
                         row_bytes(type, kGoldenCols)};
    for (Isa isa : SupportedIsas()) {
      std::vector<float> values(expected.size());
      ExpandRows(w, 0, kGoldenRows, values.data(), isa);
      EXPECT_EQ(values, expected) << name(type) << " " << IsaName(isa);
    }
  }
  EXPECT_EQ(file.peek(), std::ifstream::traits_type::eof());
}

TEST(PackedMatrixTest, RangesTailsAndMisalignment) {
  std::mt19937 random(1);
  for (TensorType type : kTensorTypes) {
    for (int64_t cols : {32, 64, 160, 1, 7, 15, 17, 31, 33, 47, 95}) {
      if (cols % block_elements(type) != 0) continue;
      const RandomMatrix w(random, type, 6, cols);
      const size_t n = static_cast<size_t>(6 * cols);
      std::vector<float> all(n);
      ExpandRows(w.view, 0, 6, all.data(), Isa::kBase);
      for (Isa isa : SupportedIsas()) {
        for (int shift : {0, 1, 2, 3}) {
          std::vector<std::byte> moved(w.storage.size() + 4);
          std::memcpy(moved.data() + shift, w.storage.data(), w.storage.size());
          PackedMatrix view = w.view;
          view.data = moved.data() + shift;
          std::vector<float> part(static_cast<size_t>(3 * cols) + 1, -7);
          ExpandRows(view, 2, 5, part.data(), isa);
          for (int64_t i = 0; i < 3 * cols; ++i) {
            ASSERT_EQ(part[static_cast<size_t>(i)], all[static_cast<size_t>(2 * cols + i)])
                << name(type) << " " << IsaName(isa) << " cols " << cols << " shift " << shift;
          }
          EXPECT_EQ(part.back(), -7) << "wrote beyond the end";
        }
      }
    }
  }
}

TEST(PackedMatrixTest, EveryHalfNumber) {
  std::vector<uint16_t> halves(0x10000);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  const PackedMatrix w{TensorType::kF16, 1, 0x10000,
                       reinterpret_cast<const std::byte*>(halves.data()), 0x20000};
  for (Isa isa : SupportedIsas()) {
    std::vector<float> values(halves.size());
    ExpandRows(w, 0, 1, values.data(), isa);
    for (uint32_t h = 0; h < 0x10000; ++h) {
      const int exponent = h >> 10 & 31;
      const double mantissa = h & 1023;
      double expected =
          exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
      if (exponent == 31) expected = mantissa == 0 ? INFINITY : NAN;
      if (h & 0x8000) expected = -expected;
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(values[h])) << h;
      } else {
        ASSERT_EQ(values[h], expected) << h << " " << IsaName(isa);
        ASSERT_EQ(std::signbit(values[h]), std::signbit(expected)) << h;
      }
    }
  }
}

}  // namespace
}  // namespace ripplekv
