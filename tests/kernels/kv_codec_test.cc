#include "kernels/kv_codec.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/kernels/hadamard_matrix.h"
#include "tests/kernels/random.h"

namespace ripplekv {
namespace {

struct Stored {
  std::vector<std::byte> row, params;
  std::vector<float> values;
};

/// Into memory of exactly the row's size, filled with a pattern before.
Stored Store(KvType type, const std::vector<float>& x, Isa isa = BestIsa(),
             KvRole role = KvRole::kValue) {
  const int d = static_cast<int>(x.size());
  Stored stored{std::vector<std::byte>(KvRowBytes(type, d), std::byte{0xa5}),
                std::vector<std::byte>(KvParamBytes(type, d), std::byte{0xa5}),
                std::vector<float>(x.size(), 1e30f)};
  EncodeKvRow(role, type, x.data(), d, stored.row.data(), stored.params.data(), isa);
  DecodeKvRow(role, type, stored.row.data(), stored.params.data(), d, stored.values.data());
  return stored;
}

/// The bound of the header, from the numbers alone.
double Bound(KvType type, const std::vector<float>& x, size_t i) {
  double low = std::numeric_limits<double>::infinity(), high = -low, largest = 0;
  const size_t first = type == KvType::kInt4 ? i / 32 * 32 : 0;
  const size_t last = type == KvType::kInt4 ? std::min(first + 32, x.size()) : x.size();
  for (size_t j = first; j < last; ++j) {
    low = std::min(low, double{x[j]});
    high = std::max(high, double{x[j]});
    largest = std::max(largest, std::abs(double{x[j]}));
  }
  if (type == KvType::kInt8) return largest / 127 / 2 * (1 + 1e-5) + 0x1p-100;
  // The minimum may be lower by an eighth bit's worth, the scale higher by as much.
  const double range = high - low + 0x1p-7 * std::abs(low);
  return range / 15 / 2 * (1 + 0x1p-7 + 1e-5) + 1e-6 * largest + 0x1p-100;
}

TEST(KvCodecTest, FloatTypesKeepWhatTheyCan) {
  std::mt19937 random(1);
  for (int d : {1, 6, 16, 20, 64, 80, 129}) {
    const std::vector<float> x = RandomFloats(random, static_cast<size_t>(d));
    for (Isa isa : SupportedIsas()) {
      EXPECT_EQ(Store(KvType::kF32, x, isa).values, x);
      const Stored bf16 = Store(KvType::kBf16, x, isa);
      for (size_t i = 0; i < x.size(); ++i) {
        EXPECT_EQ(bf16.values[i], Bf16ToFloat(FloatToBf16(x[i])));
      }
    }
  }
}

TEST(KvCodecTest, QuantisedErrorIsAtMostHalfAStep) {
  std::mt19937 random(2);
  for (KvType type : {KvType::kInt8, KvType::kInt4}) {
    for (int d : {1, 6, 20, 32, 33, 64, 80, 96, 128, 512}) {
      for (float scale : {1e-30f, 1e-3f, 1.0f, 100.0f, 1e30f}) {
        for (float shift : {0.0f, 3.0f, -10.0f}) {
          std::vector<float> x = RandomFloats(random, static_cast<size_t>(d), scale);
          for (float& value : x) value += shift * scale;
          const Stored stored = Store(type, x);
          for (size_t i = 0; i < x.size(); ++i) {
            ASSERT_LE(std::abs(double{stored.values[i]} - x[i]), Bound(type, x, i))
                << KvTypeName(type) << " d " << d << " scale " << scale << " x " << x[i];
          }
        }
      }
    }
  }
}

// Bounds alone would also hold for a coarser step: the codes reach their ends.
TEST(KvCodecTest, TheExtremesGetTheEndsOfTheCodes) {
  std::vector<float> x(64, 0.25f);
  x[3] = -2;
  x[40] = 1;
  const Stored int8 = Store(KvType::kInt8, x);
  EXPECT_EQ(static_cast<int8_t>(int8.row[3]), -127);
  EXPECT_EQ(static_cast<int8_t>(int8.row[40]), 64);  // 63.5, ties to even
  EXPECT_FLOAT_EQ(int8.values[3], -2);
  const Stored int4 = Store(KvType::kInt4, x);
  EXPECT_EQ(int4.values[3], -2);
  EXPECT_EQ(static_cast<uint8_t>(int4.row[3]) & 15, 0);
  EXPECT_EQ(static_cast<uint8_t>(int4.row[0]) & 15, 15);
  EXPECT_EQ(int4.values[32], 0.25f);                           // its own minimum, exact in bf16
  EXPECT_EQ(static_cast<uint8_t>(int4.row[16 + 8]) & 15, 15);  // channel 40
}

TEST(KvCodecTest, ZerosAndDenormals) {
  for (KvType type : {KvType::kInt8, KvType::kInt4}) {
    for (float tiny : {0.0f, -0.0f, 1e-45f, 1e-38f, 0x1p-101f}) {
      const Stored stored = Store(type, std::vector<float>(40, tiny));
      for (float value : stored.values) EXPECT_LE(std::abs(value), 0x1p-100f) << tiny;
    }
    std::vector<float> x(40, 1e-40f);
    x[0] = 1;
    const Stored stored = Store(type, x);
    EXPECT_NEAR(stored.values[0], 1, 0.005);
    for (size_t i = 1; i < x.size(); ++i) EXPECT_NEAR(stored.values[i], 0, 1e-6);
  }
}

TEST(KvCodecTest, ARowThatIsNotFiniteReadsAsNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN(),
                    -std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> x(64, 0.5f);
    x[35] = bad;
    for (float value : Store(KvType::kInt8, x).values) EXPECT_TRUE(std::isnan(value));
    const Stored int4 = Store(KvType::kInt4, x);
    for (size_t i = 0; i < 32; ++i) EXPECT_EQ(int4.values[i], 0.5f);  // the other group
    for (size_t i = 32; i < 64; ++i) EXPECT_TRUE(std::isnan(int4.values[i]));
  }
  const float most = std::numeric_limits<float>::max();
  std::vector<float> x(32, most);
  x[1] = -most;
  EXPECT_FLOAT_EQ(Store(KvType::kInt8, x).values[1], -most);
  EXPECT_TRUE(std::isnan(Store(KvType::kInt4, x).values[0]));  // the range overflows
}

TEST(KvCodecTest, KeysOfOtherTypesAreStoredAsValuesAre) {
  std::mt19937 random(4);
  const std::vector<float> x = RandomFloats(random, 80);
  for (KvType type : {KvType::kF32, KvType::kBf16, KvType::kInt8}) {
    const Stored key = Store(type, x, BestIsa(), KvRole::kKey), value = Store(type, x);
    EXPECT_EQ(key.row, value.row);
    EXPECT_EQ(key.params, value.params);
    EXPECT_EQ(key.values, value.values);
  }
}

// Blocks of 64 whole numbers have an exact transform: what is stored is the transformed row as a
// value's row, bit by bit.
TEST(KvCodecTest, Int4KeysAreStoredTransformed) {
  std::mt19937 random(5);
  std::uniform_int_distribution<int> whole(-1000, 1000);
  for (int d : {1, 20, 64, 80, 128, 512}) {
    std::vector<double> x(static_cast<size_t>(d));
    for (double& value : x) value = whole(random);
    const std::vector<double> transformed = SlowHadamardRow(x);
    const Stored key = Store(KvType::kInt4, {x.begin(), x.end()}, BestIsa(), KvRole::kKey);
    const Stored expected = Store(KvType::kInt4, {transformed.begin(), transformed.end()});
    EXPECT_EQ(key.row, expected.row) << d;
    EXPECT_EQ(key.params, expected.params) << d;
  }
}

TEST(KvCodecTest, Int4KeysErrorIsAtMostHalfAStepOfTheTransform) {
  std::mt19937 random(7);
  for (int d : {1, 20, 32, 40, 64, 80, 96, 128, 152, 512}) {
    const std::vector<float> x = RandomFloats(random, static_cast<size_t>(d));
    const Stored key = Store(KvType::kInt4, x, BestIsa(), KvRole::kKey);
    const std::vector<double> before = SlowHadamardRow({x.begin(), x.end()});
    const std::vector<double> after = SlowHadamardRow({key.values.begin(), key.values.end()});
    const std::vector<float> numbers(before.begin(), before.end());
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_LE(std::abs(after[i] - before[i]), Bound(KvType::kInt4, numbers, i) + 1e-6)
          << "d " << d;
    }
  }
}

// Without the transform, the large channel's group has steps of 100 / 15.
TEST(KvCodecTest, AnInt4KeysLargeChannelDoesNotSpoilItsGroup) {
  std::mt19937 random(6);
  std::vector<float> x = RandomFloats(random, 64);
  x[7] = 100;
  const auto error = [&](KvRole role) {
    const Stored stored = Store(KvType::kInt4, x, BestIsa(), role);
    double sum = 0;
    for (size_t i = 0; i < x.size(); ++i) sum += std::pow(stored.values[i] - x[i], 2);
    return sum;
  };
  EXPECT_LT(error(KvRole::kKey), 0.5 * error(KvRole::kValue));
}

TEST(KvCodecTest, AnInt4KeysBlockThatIsNotFiniteReadsAsNan) {
  std::vector<float> x(152, 0.5f);
  x[70] = std::numeric_limits<float>::infinity();
  const Stored stored = Store(KvType::kInt4, x, BestIsa(), KvRole::kKey);
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(std::isnan(stored.values[i]), i >= 64 && i < 128) << i;
  }
}

TEST(KvCodecTest, BitsDoNotDependOnTheInstructionSet) {
  std::mt19937 random(3);
  for (KvType type : kKvTypes) {
    for (int d : {1, 20, 64, 80, 128}) {
      for (int i = 0; i < 20; ++i) {
        const std::vector<float> x = RandomFloats(random, static_cast<size_t>(d), 3);
        const KvRole role = i % 2 == 0 ? KvRole::kKey : KvRole::kValue;
        const Stored expected = Store(type, x, Isa::kBase, role);
        for (Isa isa : SupportedIsas()) {
          const Stored stored = Store(type, x, isa, role);
          EXPECT_EQ(stored.row, expected.row);
          EXPECT_EQ(stored.params, expected.params);
        }
      }
    }
  }
}

}  // namespace
}  // namespace ripplekv
