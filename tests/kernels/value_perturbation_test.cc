#include "kernels/value_perturbation.h"

#include <gtest/gtest.h>

#include "tests/kernels/random.h"

namespace ripplekv {
namespace {

struct Fixture {
  Fixture(KvType type, int kv_heads, int d, int64_t rows, uint32_t seed) {
    std::mt19937 random(seed);
    stride = rows * d + 24;  // heads do not touch
    source = RandomKv(random, type, static_cast<size_t>(kv_heads * stride));
    destination.assign(source.bytes.size(), std::byte{0xee});
    args.type = type;
    args.kv_heads = kv_heads;
    args.head_dim = d;
    args.kv_head_stride = stride;
    args.source = source.bytes.data();
    args.destination = destination.data();
    args.first_row = 4;
    args.last_row = rows - 5;
    args.first_position = 100;
    args.eta = 0.5f;
    args.noise = {.seed = 77, .example = 3, .layer = 12};
  }

  double Result(int64_t element) const {
    if (args.type == KvType::kF32) {
      float f;
      std::memcpy(&f, &destination[static_cast<size_t>(element) * 4], 4);
      return f;
    }
    uint16_t h;
    std::memcpy(&h, &destination[static_cast<size_t>(element) * 2], 2);
    return Bf16ToFloat(h);
  }

  int64_t stride;
  KvData source;
  std::vector<std::byte> destination;
  PerturbArgs args;
};

TEST(ValuePerturbationTest, AddsTheStatedNoiseToUnprotectedRowsOnly) {
  for (KvType type : kFloatKvTypes) {
    for (int d : {64, 10}) {
      const int64_t rows = 40;
      Fixture f(type, 3, d, rows, 20);
      PerturbValues(f.args, 0, rows);
      for (int h = 0; h < 3; ++h) {
        for (int64_t r = 0; r < rows; ++r) {
          double norm = 0;
          for (int c = 0; c < d; ++c) {
            norm += std::pow(f.source.values[static_cast<size_t>(h * f.stride + r * d + c)], 2);
          }
          norm = std::sqrt(norm);
          for (int c = 0; c < d; ++c) {
            const int64_t element = h * f.stride + r * d + c;
            const double v = f.source.values[static_cast<size_t>(element)];
            const float eps =
                NoiseBlock(f.args.noise, static_cast<uint32_t>(h), static_cast<uint32_t>(100 + r),
                           static_cast<uint32_t>(c / 4))[c % 4];
            const bool touched = r >= 4 && r < rows - 5;
            const double expected = touched ? v + 0.5 / std::sqrt(d) * norm * eps : v;
            const double tolerance =
                !touched ? 0 : std::abs(expected) * (type == KvType::kF32 ? 1e-7 : 0x1p-8) + 1e-9;
            ASSERT_NEAR(f.Result(element), expected, tolerance) << h << " " << r << " " << c;
          }
        }
        // Between the heads nothing is written.
        for (int64_t i = rows * d; i < f.stride; ++i) {
          const size_t byte = static_cast<size_t>(h * f.stride + i) * KvTypeBytes(type);
          ASSERT_EQ(f.destination[byte], std::byte{0xee});
        }
      }
    }
  }
}

TEST(ValuePerturbationTest, RelativeStrengthIsEta) {
  Fixture f(KvType::kF32, 2, 64, 600, 21);
  PerturbValues(f.args, 0, 600);
  double noise = 0, values = 0;
  for (int h = 0; h < 2; ++h) {
    for (int64_t i = 4 * 64; i < 595 * 64; ++i) {
      const int64_t element = h * f.stride + i;
      const double v = f.source.values[static_cast<size_t>(element)];
      noise += std::pow(f.Result(element) - v, 2);
      values += v * v;
    }
  }
  EXPECT_NEAR(std::sqrt(noise / values), 0.5, 0.01);
}

TEST(ValuePerturbationTest, NoStrengthCopiesTheBits) {
  for (KvType type : kFloatKvTypes) {
    Fixture f(type, 2, 16, 30, 22);
    f.args.eta = 0;
    // NaN and negative zero survive as they are.
    std::memset(&f.source.bytes[10 * 16 * KvTypeBytes(type)], 0xff, KvTypeBytes(type));
    PerturbValues(f.args, 0, 30);
    for (int h = 0; h < 2; ++h) {
      const size_t begin = static_cast<size_t>(h * f.stride) * KvTypeBytes(type);
      EXPECT_EQ(
          std::memcmp(&f.destination[begin], &f.source.bytes[begin], 30 * 16 * KvTypeBytes(type)),
          0);
    }
  }
}

TEST(ValuePerturbationTest, RangesAndInPlaceGiveTheSameBits) {
  for (KvType type : kFloatKvTypes) {
    Fixture whole(type, 2, 64, 50, 23);
    PerturbValues(whole.args, 0, 50);
    Fixture parts(type, 2, 64, 50, 23);
    for (int64_t r : {40, 0, 20, 10, 30}) PerturbValues(parts.args, r, r + 10);
    EXPECT_EQ(parts.destination, whole.destination);
    Fixture in_place(type, 2, 64, 50, 23);
    in_place.args.destination = in_place.source.bytes.data();
    PerturbValues(in_place.args, 0, 50);
    for (int h = 0; h < 2; ++h) {
      const size_t begin = static_cast<size_t>(h * whole.stride) * KvTypeBytes(type);
      EXPECT_EQ(std::memcmp(&in_place.source.bytes[begin], &whole.destination[begin],
                            50 * 64 * KvTypeBytes(type)),
                0);
    }
  }
}

}  // namespace
}  // namespace ripplekv
