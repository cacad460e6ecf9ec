#include "kernels/panel_matrix.h"

#include <gtest/gtest.h>

#include <string>

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
    for (int64_t rows : {1, 6, 15, 16, 17, 31, 48}) {
      for (int64_t cols : {32, 64, 160}) cases.push_back({type, rows, cols});
      if (block_elements(type) > 1) continue;
      for (int64_t cols : {1, 2, 7, 15, 16, 17, 31, 33, 47, 95})
        cases.push_back({type, rows, cols});
    }
  }
  return cases;
}

std::string Describe(const Case& c, Isa isa) {
  return std::string(name(c.type)) + " [" + std::to_string(c.rows) + ", " + std::to_string(c.cols) +
         "] " + IsaName(isa);
}

uint32_t Bits(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  return bits;
}

TEST(PanelMatrixTest, RowsHaveTheBitsOfTheCheckpointsRows) {
  std::mt19937 random(1);
  for (const Case& c : Cases()) {
    const RandomMatrix w(random, c.type, c.rows, c.cols, 1);
    const Panels panels(w.view);
    for (Isa isa : SupportedIsas()) {
      std::vector<float> expected(static_cast<size_t>(c.rows * c.cols));
      ExpandRows(w.view, 0, c.rows, expected.data(), isa);
      const int64_t begin = c.rows / 3, end = c.rows - c.rows / 4;
      const size_t n = static_cast<size_t>((end - begin) * c.cols);
      std::vector<float> values(n + 1, -7);
      std::vector<uint16_t> rounded(n + 1, 77);
      ExpandRows(panels.view, begin, end, values.data(), isa);
      ExpandRowsBf16(panels.view, begin, end, rounded.data(), isa);
      for (size_t i = 0; i < n; ++i) {
        const float value = expected[static_cast<size_t>(begin * c.cols) + i];
        ASSERT_EQ(Bits(values[i]), Bits(value)) << Describe(c, isa) << " " << i;
        ASSERT_EQ(rounded[i], FloatToBf16(value)) << Describe(c, isa) << " " << i;
      }
      EXPECT_EQ(values[n], -7) << "wrote beyond the end";
      EXPECT_EQ(rounded[n], 77) << "wrote beyond the end";
    }
  }
}

TEST(PanelMatrixTest, PanelsOfPairsHoldTheRoundedRowsAndZeros) {
  std::mt19937 random(2);
  for (const Case& c : Cases()) {
    const RandomMatrix w(random, c.type, c.rows, c.cols);
    const Panels panels(w.view);
    std::vector<float> values(static_cast<size_t>(c.rows * c.cols));
    ExpandRows(w.view, 0, c.rows, values.data(), Isa::kBase);
    const int64_t pairs = (c.cols + 1) / 2;
    for (Isa isa : SupportedIsas()) {
      for (int64_t begin = 0; begin < panels.view.panels(); ++begin) {
        const int64_t end = panels.view.panels();
        const size_t n = static_cast<size_t>((end - begin) * pairs * 32);
        std::vector<uint16_t> out(n + 1, 77);
        ExpandPanelsBf16(panels.view, begin, end, out.data(), isa);
        for (size_t i = 0; i < n; ++i) {
          const int64_t row = begin * 16 + static_cast<int64_t>(i) / (pairs * 32) * 16 +
                              static_cast<int64_t>(i) / 2 % 16;
          const int64_t column =
              static_cast<int64_t>(i) / 32 % pairs * 2 + static_cast<int64_t>(i) % 2;
          const float value = row < c.rows && column < c.cols
                                  ? values[static_cast<size_t>(row * c.cols + column)]
                                  : 0;
          // +0 and -0 both stand for zero.
          ASSERT_EQ(Bf16ToFloat(out[i]), Bf16ToFloat(FloatToBf16(value)))
              << Describe(c, isa) << " row " << row << " column " << column;
        }
        EXPECT_EQ(out[n], 77) << "wrote beyond the end";
      }
    }
  }
}

TEST(PanelMatrixTest, RepackingInRangesGivesTheSameBytes) {
  std::mt19937 random(3);
  for (const Case& c : Cases()) {
    const RandomMatrix w(random, c.type, c.rows, c.cols);
    const Panels all(w.view);
    std::vector<std::byte> parts(all.bytes(), std::byte{0x5a});
    for (int64_t p = all.view.panels() - 1; p >= 0; --p) {
      RepackPanels(w.view, p, p + 1, parts.data());
    }
    EXPECT_EQ(std::memcmp(parts.data(), all.view.data, parts.size()), 0) << Describe(c, Isa::kBase);
  }
}

TEST(PanelMatrixTest, RoundingToBf16KeepsNanInfinityAndDenormals) {
  std::vector<float> specials(48);
  for (size_t i = 0; i < specials.size(); ++i) {
    specials[i] =
        std::ldexp(1.0f + 0.37f * static_cast<float>(i % 3), -130 - static_cast<int>(i % 12));
  }
  specials[3] = INFINITY;
  specials[4] = -INFINITY;
  const uint32_t bits = 0x7f800001;
  std::memcpy(&specials[5], &bits, 4);
  specials[6] = std::numeric_limits<float>::max();
  specials[7] = -0.0f;
  const PackedMatrix w{TensorType::kF32, 1, 48, reinterpret_cast<const std::byte*>(specials.data()),
                       192};
  const Panels panels(w);
  for (Isa isa : SupportedIsas()) {
    std::vector<uint16_t> rows(48), pairs(24 * 32);
    ExpandRowsBf16(panels.view, 0, 1, rows.data(), isa);
    ExpandPanelsBf16(panels.view, 0, 1, pairs.data(), isa);
    for (size_t i = 0; i < 48; ++i) {
      EXPECT_EQ(rows[i], FloatToBf16(specials[i])) << i << " " << IsaName(isa);
      EXPECT_EQ(pairs[i / 2 * 32 + i % 2], FloatToBf16(specials[i])) << i << " " << IsaName(isa);
    }
  }
}

}  // namespace
}  // namespace ripplekv
