// Decode attention on every device of the build (device_kernels_test.cc: the other kernels).
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/kernels/device_cases.h"
#include "tests/kernels/device_sequences.h"
#include "tests/kernels/random.h"

namespace ripplekv {
namespace {

class DeviceAttentionTest : public DeviceKernelsTest {};
class DeviceStoredAttentionTest : public DeviceStoredRowsTest {};

const AttentionShape kShapes[] = {
    {9, 3, 64, 16},   {4, 4, 64, 7},   {14, 2, 40, 13},  // a group of 7; odd pages
    {4, 1, 128, 300},                                    // pages longer than a split
    {5, 1, 6, 1},     {9, 1, 72, 16},  {2, 1, 256, 5},
    {6, 2, 264, 9},   {3, 1, 512, 16}, {2, 2, 511, 4},
};

TEST_P(DeviceStoredAttentionTest, AttentionAgreesWithDoublePrecision) {
  std::mt19937 random(6);
  for (const AttentionShape& shape : kShapes) {
    const DeviceSequences sequences(random, types_, shape, kRagged);
    sequences.Compare(sequences.Run(device_.get(), true), GetParam().attention_tolerance, true);
    if (HasFatalFailure()) return;
  }
}

TEST_P(DeviceStoredAttentionTest, AttentionBitsDoNotDependOnCompanyPagesOrBounds) {
  std::mt19937 random(7);
  for (const AttentionShape& shape : {kShapes[0], kShapes[2], kShapes[3]}) {
    // The stand-in of a GPU takes seconds a shape.
    if (GetParam().device == DeviceKind::kCudaOnHost && shape.heads != kShapes[2].heads) continue;
    const DeviceSequences sequences(random, types_, shape, kRagged);
    const DeviceSequences::Result expected = sequences.Run(device_.get(), true);
    EXPECT_EQ(sequences.Run(device_.get(), 0, kRagged.size(), true, 2, 1000), expected);
    EXPECT_TRUE(
        DeviceSequences::Result::SameBits(sequences.Run(device_.get(), false).out, expected.out))
        << "without mass";
    size_t mass_at = 0;
    const size_t floats = static_cast<size_t>(shape.heads * shape.d);
    for (size_t s = 0; s < kRagged.size(); ++s) {
      const DeviceSequences::Result alone = sequences.Run(device_.get(), s, s + 1, true, 3);
      EXPECT_EQ(std::memcmp(alone.out.data(), &expected.out[s * floats], floats * sizeof(float)),
                0);
      EXPECT_TRUE(
          std::equal(alone.mass.begin(), alone.mass.end(),
                     expected.mass.begin() + static_cast<ptrdiff_t>(mass_at),
                     [](float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }))
          << "sequence " << s << " alone";
      mass_at += alone.mass.size();
    }
  }
}

TEST_P(DeviceAttentionTest, AttentionOfLargeScoresAndOfDenormals) {
  std::mt19937 random(10);
  DeviceSequences large(random, type_, {2, 1, 16, 8}, {600});
  for (float& q : large.q_) q *= 1000;
  large.Compare(large.Run(device_.get(), false), 1e-3, false);

  DeviceSequences small(random, type_, {2, 1, 16, 8}, {300});
  for (size_t i = 0; i < small.v_[0].values.size(); ++i) {
    const float tiny = static_cast<float>(small.v_[0].values[i]) * 1e-40f;
    if (type_ == KvType::kF32) {
      std::memcpy(&small.v_[0].bytes[i * 4], &tiny, 4);
    } else {
      const uint16_t rounded = FloatToBf16(tiny);
      std::memcpy(&small.v_[0].bytes[i * 2], &rounded, 2);
    }
    small.v_[0].values[i] = Number(type_, &small.v_[0].bytes[i * KvTypeBytes(type_)]);
  }
  const DeviceSequences::Result result = small.Run(device_.get(), false);
  EXPECT_TRUE(std::any_of(result.out.begin(), result.out.end(), [](float x) { return x != 0; }));
  // The weights sum to up to 300 before the division: each denormal step counts.
  small.Compare(result, 1e-2, false, 1e-40);
}

TEST_P(DeviceAttentionTest, AttentionIgnoresAKeyAtMinusInfinity) {
  std::mt19937 random(11);
  DeviceSequences sequences(random, type_, {2, 1, 16, 8}, {300});
  for (float& q : sequences.q_) q = std::abs(q) + 0.1f;
  for (int64_t row : {0, 17, 299}) {
    const size_t element = sequences.Element(0, 0, row, 5);
    sequences.k_[0].values[element] = -std::numeric_limits<double>::infinity();
    const uint32_t bits = 0xff800000u;
    std::memcpy(&sequences.k_[0].bytes[element * KvTypeBytes(type_)],
                reinterpret_cast<const std::byte*>(&bits) + (type_ == KvType::kF32 ? 0 : 2),
                KvTypeBytes(type_));
  }
  sequences.Compare(sequences.Run(device_.get(), false), GetParam().attention_tolerance, false);
}

// Threads that have no row left read the last one again: it must not be counted twice, or as 0
// times infinity.
TEST_P(DeviceAttentionTest, AttentionOverAnInfiniteValueIsInfinite) {
  std::mt19937 random(12);
  DeviceSequences sequences(random, type_, {2, 1, 16, 8}, {300});
  const uint32_t bits = 0x7f800000u;
  std::memcpy(&sequences.v_[0].bytes[sequences.Element(0, 0, 299, 3) * KvTypeBytes(type_)],
              reinterpret_cast<const std::byte*>(&bits) + (type_ == KvType::kF32 ? 0 : 2),
              KvTypeBytes(type_));
  const std::vector<float> out = sequences.Run(device_.get(), false).out;
  for (size_t i = 0; i < out.size(); ++i) {
    if (i % 16 == 3) {
      EXPECT_EQ(out[i], std::numeric_limits<float>::infinity()) << i;
    } else {
      EXPECT_TRUE(std::isfinite(out[i])) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, DeviceAttentionTest, testing::ValuesIn(FloatCases()), CaseName);
INSTANTIATE_TEST_SUITE_P(All, DeviceStoredAttentionTest, testing::ValuesIn(StoredCases()),
                         StoredCaseName);

}  // namespace
}  // namespace ripplekv
