#include "calibration/policy/allocator.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/calibration/policy/golden_file.h"

namespace ripplekv {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(AllocatorTest, RippleMatchesArbitraryPrecision) {
  int cases = 0;
  for (const std::vector<std::string>& line : ReadGoldenFile("multipliers_golden.txt")) {
    const RippleAllocator ripple{.r = std::stod(line[0]), .gamma = std::stod(line[1])};
    const int layers = std::stoi(line[2]);
    std::vector<double> sensitivity, expected;
    for (int l = 0; l < layers; ++l) {
      sensitivity.push_back(std::stod(line[3 + l]));
      expected.push_back(std::stod(line[4 + layers + l]));
    }
    const auto multipliers = Multipliers(ripple, sensitivity, layers);
    ASSERT_TRUE(multipliers.ok()) << multipliers.status();
    ASSERT_EQ(multipliers->size(), expected.size());
    for (int l = 0; l < layers; ++l) {
      EXPECT_NEAR((*multipliers)[l], expected[l], 1e-13 * expected[l]) << "case " << cases;
    }
    ++cases;
  }
  EXPECT_EQ(cases, 80);
}

TEST(AllocatorTest, OneAndConstantProfilesAreExactlyUniform) {
  std::mt19937_64 random(1);
  for (int layers : {1, 2, 3, 7, 30, 32, 126, kMaxLayers}) {
    std::vector<double> sensitivity(layers);
    for (double& s : sensitivity) s = std::ldexp(static_cast<double>(random() >> 11), -53);
    const std::vector<double> uniform = *Multipliers(UniformAllocator{}, {}, layers);
    EXPECT_THAT(uniform, Each(1.0));
    EXPECT_EQ(*Multipliers(RippleAllocator{.r = 1}, sensitivity, layers), uniform);
    EXPECT_EQ(*Multipliers(RippleAllocator{.r = 9, .gamma = 1}, sensitivity, layers), uniform);
    EXPECT_EQ(*Multipliers(RippleAllocator{}, std::vector<double>(layers, 0.0), layers), uniform);
    EXPECT_EQ(*Multipliers(RippleAllocator{}, std::vector<double>(layers, 0.013), layers), uniform);
    EXPECT_EQ(*Multipliers(RippleAllocator{.r = 1.1}, std::vector<double>(layers, 2.0), layers),
              uniform);
    EXPECT_EQ(*Multipliers(UniformAllocator{}, sensitivity, layers), uniform);
  }
}

TEST(AllocatorTest, RandomProfilesKeepOrderRatioAndMean) {
  std::mt19937_64 random(2);
  const auto unit = [&] { return std::ldexp(static_cast<double>(random() >> 11), -53); };
  for (int i = 0; i < 5000; ++i) {
    const int layers = 2 + static_cast<int>(random() % 60);
    const RippleAllocator ripple{.r = std::pow(10.0, 6 * unit()),
                                 .gamma = std::pow(10.0, 6 * unit())};
    const double scale = std::pow(10.0, 20 * unit() - 15);
    std::vector<double> sensitivity(layers);
    for (double& s : sensitivity) s = scale * unit();
    const std::vector<double> w = *Multipliers(ripple, sensitivity, layers);
    double sum = 0, min = kInfinity, max = 0;
    for (int l = 0; l < layers; ++l) {
      ASSERT_GT(w[l], 0);
      sum += w[l];
      min = std::min(min, w[l]);
      max = std::max(max, w[l]);
      for (int k = 0; k < layers; ++k) {
        if (sensitivity[l] > sensitivity[k]) {
          ASSERT_GE(w[l], w[k]) << "r " << ripple.r;
        }
      }
    }
    ASSERT_NEAR(sum / layers, 1.0, 1e-12);
    ASSERT_NEAR(max / min, std::min(ripple.r, ripple.gamma), 1e-12 * ripple.r);
  }
}

TEST(AllocatorTest, ExtremeSensitivitiesStayFinite) {
  const double huge = std::numeric_limits<double>::max();
  const double tiny = std::numeric_limits<double>::denorm_min();
  EXPECT_EQ(*Multipliers(RippleAllocator{.r = 3}, {0.0, huge}, 2), (std::vector<double>{0.5, 1.5}));
  EXPECT_EQ(*Multipliers(RippleAllocator{.r = 3}, {0.0, tiny}, 2), (std::vector<double>{0.5, 1.5}));
}

double Unit(std::mt19937_64& random) {
  return std::ldexp(static_cast<double>(random() >> 11), -53);
}

// s^_l by the definition, one layer at a time.
double SlowMapped(SignalMap map, const std::vector<double>& signal, size_t layer) {
  const auto n = static_cast<double>(signal.size());
  if (map == SignalMap::kRank) {
    double below = 0, alike = 0;
    for (double s : signal) {
      below += s < signal[layer];
      alike += s == signal[layer];
    }
    return alike == n ? 0 : (below + (alike - 1) / 2) / (n - 1);
  }
  std::vector<double> values = signal;
  if (map == SignalMap::kLog) {
    double least = 0;
    for (double s : signal) {
      if (s > 0 && (least == 0 || s < least)) least = s;
    }
    for (double& v : values) v = least == 0 ? 0 : std::log(v == 0 ? least : v);
  }
  double min = kInfinity, max = -kInfinity;
  for (double v : values) {
    min = std::min(min, v);
    max = std::max(max, v);
  }
  return max == min ? 0 : (values[layer] - min) / (max - min);
}

// With ties and zeros.
std::vector<double> RandomSignal(std::mt19937_64& random, int layers) {
  std::vector<double> signal(layers);
  for (double& s : signal) s = random() % 5 == 0 ? 0 : std::pow(10.0, -4 * Unit(random));
  for (int l = 1; l < layers; ++l) {
    if (random() % 4 == 0) signal[l] = signal[l - 1];
  }
  return signal;
}

TEST(AllocatorTest, EachMapIsItsDefinition) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 600; ++i) {
    const int layers = 1 + static_cast<int>(random() % 40);
    const std::vector<double> signal = RandomSignal(random, layers);
    for (const SignalMap map : {SignalMap::kMinMax, SignalMap::kLog, SignalMap::kRank}) {
      const RippleAllocator ripple{.r = 1 + 20 * Unit(random), .gamma = 1e6, .map = map};
      for (const bool inverse : {false, true}) {
        std::vector<double> expected(layers);
        double sum = 0, most = 0;
        for (int l = 0; l < layers; ++l) most = std::max(most, SlowMapped(map, signal, l));
        for (int l = 0; l < layers; ++l) {
          const double mapped = SlowMapped(map, signal, l);
          expected[l] = std::pow(ripple.r, inverse && most > 0 ? 1 - mapped : mapped);
          sum += expected[l];
        }
        const Allocator allocator =
            inverse ? Allocator(InverseRippleAllocator{ripple}) : Allocator(ripple);
        const std::vector<double> w = *Multipliers(allocator, signal, layers);
        for (int l = 0; l < layers; ++l) {
          ASSERT_NEAR(w[l], expected[l] * layers / sum, 1e-12 * w[l]) << SignalMapName(map);
        }
        // The other signals go through the same map.
        if (inverse) continue;
        ASSERT_EQ(*Multipliers(IsolatedDamageAllocator{ripple}, signal, layers), w);
        ASSERT_EQ(*Multipliers(LocalResponseAllocator{ripple}, signal, layers), w);
      }
    }
  }
}

TEST(AllocatorTest, SqrtIsProportionalDownToAMillionth) {
  const std::vector<double> w = *Multipliers(SqrtAllocator{}, {4, 1, 0, 9, 1e-20}, 5);
  EXPECT_NEAR(w[0] / w[1], 2, 1e-12);
  EXPECT_NEAR(w[3] / w[1], 3, 1e-12);
  EXPECT_NEAR(w[2] / w[3], 1e-6, 1e-18);
  EXPECT_EQ(w[2], w[4]);
  EXPECT_NEAR(w[0] + w[1] + w[2] + w[3] + w[4], 5, 1e-12);
}

TEST(AllocatorTest, ShuffledIsTheRippleOfADocumentedPermutation) {
  // SplitMix64 and Fisher-Yates worked out in Python.
  const std::vector<double> signal = {0, 1, 2, 3, 4, 5, 6, 7};
  const RippleAllocator ripple{.r = 5};
  const auto permuted = [&](std::vector<double> order) { return *Multipliers(ripple, order, 8); };
  const auto shuffled = [&](uint64_t seed) {
    return *Multipliers(ShuffledRippleAllocator{ripple, seed}, signal, 8);
  };
  EXPECT_EQ(shuffled(0), permuted({2, 5, 0, 3, 4, 6, 1, 7}));
  EXPECT_EQ(shuffled(1), permuted({4, 3, 2, 7, 5, 6, 0, 1}));
  EXPECT_EQ(shuffled(7), permuted({1, 4, 5, 2, 6, 0, 3, 7}));
}

std::vector<Allocator> FromSignals() {
  std::vector<Allocator> allocators = {SqrtAllocator{}};
  for (const SignalMap map : {SignalMap::kMinMax, SignalMap::kLog, SignalMap::kRank}) {
    const RippleAllocator ripple{.r = 6, .gamma = 3, .map = map};
    allocators.push_back(ripple);
    allocators.push_back(InverseRippleAllocator{ripple});
    allocators.push_back(IsolatedDamageAllocator{ripple});
    allocators.push_back(LocalResponseAllocator{ripple});
  }
  return allocators;
}

TEST(AllocatorTest, ConstantSignalsAreExactlyUniform) {
  std::vector<Allocator> allocators = FromSignals();
  allocators.push_back(ShuffledRippleAllocator{.seed = 3});
  for (const Allocator& allocator : allocators) {
    for (const int layers : {1, 3, 7, 30, 126}) {
      for (const double value : {0.0, 0.013, 5.0}) {
        EXPECT_THAT(*Multipliers(allocator, std::vector<double>(layers, value), layers), Each(1.0))
            << AllocatorName(allocator);
      }
    }
  }
  EXPECT_THAT(*Multipliers(MultipliersAllocator{{0.1, 0.1, 0.1}}, {}, 3), Each(1.0));
}

TEST(AllocatorTest, FollowsPermutationsAndIgnoresScale) {
  std::mt19937_64 random(4);
  for (int i = 0; i < 300; ++i) {
    const int layers = 2 + static_cast<int>(random() % 30);
    const std::vector<double> signal = RandomSignal(random, layers);
    std::vector<size_t> order(layers);
    for (int l = 0; l < layers; ++l) order[l] = l;
    std::shuffle(order.begin(), order.end(), random);
    std::vector<double> permuted, scaled;
    for (size_t l : order) permuted.push_back(signal[l]);
    for (double s : signal) scaled.push_back(16 * s);
    for (const Allocator& allocator : FromSignals()) {
      const std::vector<double> w = *Multipliers(allocator, signal, layers);
      const std::vector<double> p = *Multipliers(allocator, permuted, layers);
      const std::vector<double> s = *Multipliers(allocator, scaled, layers);
      for (int l = 0; l < layers; ++l) {
        ASSERT_NEAR(p[l], w[order[l]], 1e-13) << AllocatorName(allocator);
        ASSERT_NEAR(s[l], w[l], 1e-10 * w[l]) << AllocatorName(allocator);
      }
    }
  }
}

TEST(AllocatorTest, GivenMultipliersKeepTheirRatios) {
  EXPECT_THAT(*Multipliers(MultipliersAllocator{{1, 2, 3, 2}}, {}, 4),
              testing::Pointwise(testing::DoubleNear(1e-15), {0.5, 1.0, 1.5, 1.0}));
  const double huge = std::numeric_limits<double>::max();
  EXPECT_THAT(*Multipliers(MultipliersAllocator{{huge, huge}}, {}, 2), Each(1.0));
}

TEST(AllocatorTest, KnowsNamesAndNeeds) {
  struct Case {
    Allocator allocator;
    const char* name;
    Measurement needed;
  };
  for (const Case& c : std::vector<Case>{
           {RippleAllocator{}, "ripple", Measurement::kSensitivity},
           {UniformAllocator{}, "uniform", Measurement::kNone},
           {SqrtAllocator{}, "sqrt", Measurement::kSensitivity},
           {InverseRippleAllocator{}, "inverse_ripple", Measurement::kSensitivity},
           {ShuffledRippleAllocator{}, "shuffled_ripple", Measurement::kSensitivity},
           {IsolatedDamageAllocator{}, "isolated_damage", Measurement::kDamage},
           {LocalResponseAllocator{}, "local_response", Measurement::kLocalResponse},
           {PyramidAllocator{}, "pyramid", Measurement::kNone},
           {MultipliersAllocator{}, "multipliers", Measurement::kNone},
           {PositionsAllocator{}, "positions", Measurement::kNone},
           {DamageCurvesAllocator{}, "damage_curves", Measurement::kDamage},
       }) {
    EXPECT_EQ(AllocatorName(c.allocator), c.name);
    EXPECT_EQ(NeededMeasurement(c.allocator), c.needed) << c.name;
  }
}

TEST(AllocatorTest, ErrorsNameFieldValueAndRange) {
  const std::vector<double> three = {1, 2, 3};
  struct Case {
    Allocator allocator;
    std::vector<double> sensitivity;
    int layers;
    const char* message;
  };
  const double nan = std::nan("");
  for (const Case& c : std::vector<Case>{
           {RippleAllocator{.r = 0.5}, three, 3, "ripple.r is 0.5: must be between 1 and 1000000"},
           {RippleAllocator{.r = nan}, three, 3, "ripple.r is nan: must be between 1 and 1000000"},
           {RippleAllocator{.r = kInfinity}, three, 3, "ripple.r is inf: must be between"},
           {RippleAllocator{.r = 1.1e6}, three, 3, "ripple.r is 1.1e+06: must be between"},
           {RippleAllocator{.gamma = 0.99}, three, 3,
            "ripple.gamma is 0.99: must be between 1 and"},
           {RippleAllocator{.gamma = nan}, three, 3, "ripple.gamma is nan"},
           {RippleAllocator{}, {1, -0.5, 3}, 3, "sensitivity[1] is -0.5: must be finite and at"},
           {RippleAllocator{}, {1, 2, nan}, 3, "sensitivity[2] is nan: must be finite and at"},
           {UniformAllocator{}, {kInfinity, 2, 3}, 3, "sensitivity[0] is inf"},
           {RippleAllocator{}, three, 4,
            "sensitivity has 3 values: must have one for each of the 4"},
           {UniformAllocator{}, three, 4, "sensitivity has 3 values"},
           {RippleAllocator{}, {}, 4, "sensitivity has 0 values"},
           {RippleAllocator{.map = static_cast<SignalMap>(9)}, three, 3,
            "ripple.map is 9: must be minmax, log or rank"},
           {InverseRippleAllocator{{.r = 0}}, three, 3,
            "inverse_ripple.ripple.r is 0: must be between"},
           {ShuffledRippleAllocator{{.gamma = 0}}, three, 3,
            "shuffled_ripple.ripple.gamma is 0: must be between"},
           {IsolatedDamageAllocator{.retention = 1}, three, 3,
            "isolated_damage.retention is 1: must be above 0 and below 1"},
           {IsolatedDamageAllocator{.retention = nan}, three, 3,
            "isolated_damage.retention is nan"},
           {IsolatedDamageAllocator{}, {1, nan, 1}, 3, "damage[1] is nan: must be finite and at"},
           {LocalResponseAllocator{}, {1, 2}, 3, "local_response has 2 values: must have one for"},
           {SqrtAllocator{}, {}, 3, "sensitivity has 0 values"},
           {DamageCurvesAllocator{.least_share = 1.5},
            {},
            3,
            "damage_curves.least_share is 1.5: must be between 0 and 1"},
           {PyramidAllocator{.beta = 0.5}, {}, 3, "pyramid.beta is 0.5: must be between 1 and"},
           {PyramidAllocator{}, {}, 3, "the pyramid allocator has no multipliers"},
           {MultipliersAllocator{{1, 2}},
            {},
            3,
            "multipliers has 2 values: must have one for each"},
           {MultipliersAllocator{{1, 0, 1}},
            {},
            3,
            "multipliers[1] is 0: must be finite, positive"},
           {PositionsAllocator{}, {}, 3, "positions has 0 values: must have 1 to 4096"},
           {PositionsAllocator{{5, 0, 5}}, {}, 3, "positions[1] is 0: must be between 1 and"},
           {UniformAllocator{}, {}, 0, "layers is 0: must be between 1 and 4096"},
           {UniformAllocator{}, {}, 4097, "layers is 4097: must be between 1 and 4096"},
       }) {
    const absl::Status status = Multipliers(c.allocator, c.sensitivity, c.layers).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
  }
}

}  // namespace
}  // namespace ripplekv
