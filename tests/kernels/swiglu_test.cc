#include "kernels/swiglu.h"

#include <gtest/gtest.h>

#include "tests/kernels/random.h"

namespace ripplekv {
namespace {

TEST(SwiGluTest, AgreesWithDoublePrecision) {
  std::mt19937 random(60);
  for (size_t n : {1u, 15u, 16u, 33u, 1536u}) {
    std::vector<float> gate = RandomFloats(random, n, 10);
    const std::vector<float> up = RandomFloats(random, n);
    gate[0] = -120;
    gate[n / 2] = 200;
    gate[n - 1] = 0;
    for (Isa isa : SupportedIsas()) {
      std::vector<float> out(n);
      SwiGlu(gate.data(), up.data(), static_cast<int64_t>(n), out.data(), isa);
      for (size_t i = 0; i < n; ++i) {
        const double expected = gate[i] / (1 + std::exp(-static_cast<double>(gate[i]))) * up[i];
        ASSERT_NEAR(out[i], expected, 1e-6 * std::abs(expected) + 1e-30)
            << gate[i] << " " << IsaName(isa);
      }
      std::vector<float> over_gate = gate, over_up = up;
      SwiGlu(over_gate.data(), up.data(), static_cast<int64_t>(n), over_gate.data(), isa);
      SwiGlu(gate.data(), over_up.data(), static_cast<int64_t>(n), over_up.data(), isa);
      EXPECT_EQ(over_gate, out);
      EXPECT_EQ(over_up, out);
    }
  }
}

// Every size of argument, through silu's exponential.
TEST(SwiGluTest, ExponentialIsAccurateEverywhere) {
  std::vector<float> gate, up;
  for (float x = -88; x < 88; x += 0.0137f) gate.push_back(x);
  up.assign(gate.size(), 1.0f);
  for (Isa isa : SupportedIsas()) {
    std::vector<float> out(gate.size());
    SwiGlu(gate.data(), up.data(), static_cast<int64_t>(gate.size()), out.data(), isa);
    for (size_t i = 0; i < gate.size(); ++i) {
      const double expected = gate[i] / (1 + std::exp(-static_cast<double>(gate[i])));
      ASSERT_NEAR(out[i], expected, 5e-7 * std::abs(expected) + 1e-36) << gate[i];
    }
  }
}

}  // namespace
}  // namespace ripplekv
