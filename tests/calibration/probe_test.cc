#include "calibration/probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/key_scores.h"
#include "model/decoder.h"
#include "tests/calibration/tiny_decoder.h"

namespace ripplekv {
namespace {

using testing::HasSubstr;

using Model = TinyDecoder;

CalibrationSettings Settings(int examples = 3, int prefix = 70, int window = 21) {
  CalibrationSettings settings;
  settings.examples = examples;
  settings.prefix_tokens = prefix;
  settings.window_tokens = window;
  settings.recent = 8;
  return settings;
}

std::vector<std::vector<int32_t>> Examples(const CalibrationSettings& settings) {
  return RandomTokens(settings.examples, settings.example_tokens());
}

using Divergences = std::vector<std::vector<double>>;

/// Everything that a probe measures.
ProbeMeasurements MeasureAll(Decoder* decoder, const CalibrationSettings& settings,
                             Probe::Batching batching = Probe::Batching()) {
  auto probe = Probe::Create(decoder, settings, Examples(settings), batching);
  EXPECT_TRUE(probe.ok()) << probe.status();
  while (!(*probe)->done()) {
    const absl::Status status = (*probe)->Step();
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok()) break;
  }
  return (*probe)->measurements();
}

Divergences Measure(Decoder* decoder, const CalibrationSettings& settings,
                    Probe::Batching batching = Probe::Batching()) {
  return MeasureAll(decoder, settings, batching).sensitivity;
}

/// Curves and storage on the last two of three examples.
CalibrationSettings DamageSettings() {
  CalibrationSettings settings = Settings();
  settings.damage_examples = 2;
  settings.damage_retentions = {0.55, 0.8};
  settings.damage_storage = true;
  return settings;
}

class ProbeTest : public testing::TestWithParam<ComputeType> {};

INSTANTIATE_TEST_SUITE_P(Compute, ProbeTest, testing::Values(ComputeType::kF32, ComputeType::kBf16),
                         [](const auto& info) { return std::string(ComputeTypeName(info.param)); });

TEST_P(ProbeTest, NoNoiseIsExactlyZero) {
  Model model(GetParam());
  CalibrationSettings settings = Settings();
  settings.eta = 0;
  for (const auto& layers : Measure(model.decoder.get(), settings)) {
    for (const double kl : layers) EXPECT_EQ(kl, 0.0);
  }
}

TEST_P(ProbeTest, NoiseMovesTheOutput) {
  Model model(GetParam());
  const Divergences some = Measure(model.decoder.get(), Settings());
  CalibrationSettings strong = Settings();
  strong.eta = 2;
  const Divergences more = Measure(model.decoder.get(), strong);
  ASSERT_EQ(some.size(), 3u);
  for (size_t e = 0; e < some.size(); ++e) {
    ASSERT_EQ(some[e].size(), 2u);
    for (size_t l = 0; l < some[e].size(); ++l) {
      EXPECT_GT(some[e][l], 0);
      EXPECT_GT(more[e][l], some[e][l]);
    }
  }
}

TEST_P(ProbeTest, BitsDoNotDependOnThreadsOrBatching) {
  Model one(GetParam(), 1);
  Model two(GetParam(), 2);
  // A window of two chunks, a prefix that is no multiple of a tile.
  CalibrationSettings settings = Settings(3, 77, Decoder::kChunkTokens + 21);
  const Divergences expected = Measure(one.decoder.get(), settings, {1, 1});
  EXPECT_EQ(Measure(one.decoder.get(), settings, {3, 2}), expected);
  EXPECT_EQ(Measure(two.decoder.get(), settings, {1, 1}), expected);
  EXPECT_EQ(Measure(two.decoder.get(), settings, {2, 5}), expected);
  EXPECT_EQ(Measure(two.decoder.get(), settings, {100, 100}), expected);
  settings.seed = 1;
  EXPECT_NE(Measure(one.decoder.get(), settings), expected);
}

TEST_P(ProbeTest, DamageDoesNotDependOnThreadsOrBatchingAndLeavesSensitivityAlone) {
  Model one(GetParam(), 1);
  Model two(GetParam(), 2);
  const CalibrationSettings settings = DamageSettings();
  const ProbeMeasurements expected = MeasureAll(one.decoder.get(), settings, {1, 1});
  ASSERT_EQ(expected.rows.size(), 2u);
  ASSERT_EQ(expected.storage.size(), 2u);
  for (size_t e = 0; e < 2; ++e) {
    ASSERT_EQ(expected.rows[e].size(), 2u);
    ASSERT_EQ(expected.storage[e].size(), 2u);
    for (size_t l = 0; l < 2; ++l) {
      ASSERT_EQ(expected.rows[e][l].size(), 2u);
      ASSERT_EQ(expected.storage[e][l].size(), 3u);
      EXPECT_GT(expected.rows[e][l][0], 0);
      EXPECT_GT(expected.rows[e][l][1], 0);
      EXPECT_NE(expected.rows[e][l][0], expected.rows[e][l][1]);
      // Fewer bits cost more.
      EXPECT_GT(expected.storage[e][l][1], expected.storage[e][l][0]);
      EXPECT_GT(expected.storage[e][l][2], expected.storage[e][l][0]);
    }
  }
  for (const Probe::Batching batching :
       {Probe::Batching{3, 2}, Probe::Batching{4, 1}, Probe::Batching{100, 100}}) {
    for (Decoder* decoder : {one.decoder.get(), two.decoder.get()}) {
      const ProbeMeasurements again = MeasureAll(decoder, settings, batching);
      EXPECT_EQ(again.sensitivity, expected.sensitivity);
      EXPECT_EQ(again.local_response, expected.local_response);
      EXPECT_EQ(again.rows, expected.rows);
      EXPECT_EQ(again.storage, expected.storage);
    }
  }
  EXPECT_EQ(Measure(one.decoder.get(), Settings()), expected.sensitivity);
}

TEST_P(ProbeTest, AllRowsKeptIsExactlyZero) {
  Model model(GetParam());
  CalibrationSettings settings = Settings();
  settings.damage_examples = 3;
  settings.damage_retentions = {0.9, 1 - 1e-12};  // 63 and 70 of 70 rows
  for (const auto& layers : MeasureAll(model.decoder.get(), settings).rows) {
    for (const auto& retentions : layers) {
      EXPECT_GT(retentions[0], 0);
      EXPECT_EQ(retentions[1], 0.0);
    }
  }
}

TEST_P(ProbeTest, DamageIsThatOfTheSelector) {
  Model one(GetParam(), 1), two(GetParam(), 2);
  CalibrationSettings settings = DamageSettings();
  const auto snapkv = MeasureAll(one.decoder.get(), settings);
  std::set<double> different = {snapkv.rows[0][0][0]};
  for (const SelectorSpec& selector : std::initializer_list<SelectorSpec>{
           H2o{.window = 8, .queries = 30}, RecentAttention{.window = 16}, StreamingLlm{},
           MixedAttention{}, RandomPositions{.window = 4}}) {
    settings.selector = selector;
    const auto measured = MeasureAll(one.decoder.get(), settings);
    EXPECT_EQ(MeasureAll(two.decoder.get(), settings, {1, 3}).rows, measured.rows);
    EXPECT_EQ(measured.sensitivity, snapkv.sensitivity);
    EXPECT_EQ(measured.storage, snapkv.storage);
    different.insert(measured.rows[0][0][0]);
  }
  EXPECT_EQ(different.size(), 6u);
}

TEST_P(ProbeTest, DamageIsOfTheLastExamples) {
  Model model(GetParam());
  CalibrationSettings all = DamageSettings();
  all.damage_examples = all.examples;
  const ProbeMeasurements every = MeasureAll(model.decoder.get(), all);
  const ProbeMeasurements last = MeasureAll(model.decoder.get(), DamageSettings());
  ASSERT_EQ(every.rows.size(), 3u);
  EXPECT_EQ(last.rows[0], every.rows[1]);
  EXPECT_EQ(last.rows[1], every.rows[2]);
  EXPECT_EQ(last.storage[1], every.storage[2]);
  EXPECT_NE(every.rows[0], every.rows[1]);
}

TEST_P(ProbeTest, LocalResponseGrowsWithTheNoiseAndIsExactlyZeroWithoutAny) {
  Model model(GetParam());
  CalibrationSettings settings = Settings();
  settings.eta = 0;
  for (const auto& layers : MeasureAll(model.decoder.get(), settings).local_response) {
    for (const double response : layers) EXPECT_EQ(response, 0.0);
  }
  settings.eta = 0.05;
  const Divergences small = MeasureAll(model.decoder.get(), settings).local_response;
  settings.eta = 0.1;
  const Divergences twice = MeasureAll(model.decoder.get(), settings).local_response;
  for (size_t e = 0; e < small.size(); ++e) {
    for (size_t l = 0; l < small[e].size(); ++l) {
      EXPECT_GT(small[e][l], 0);
      EXPECT_LT(small[e][l], 1);
      // Linear in small noise; rounding to bf16 adds its own.
      const double tolerance = GetParam() == ComputeType::kF32 ? 0.1 : 0.6;
      EXPECT_NEAR(twice[e][l] / small[e][l], 2, tolerance);
    }
  }
}

TEST_P(ProbeTest, ExamplesDoNotTouchEachOther) {
  Model model(GetParam());
  const Divergences three = Measure(model.decoder.get(), Settings(3));
  const Divergences one = Measure(model.decoder.get(), Settings(1));
  EXPECT_EQ(one[0], three[0]);
}

TEST_P(ProbeTest, OtherWorkBetweenSlicesChangesNothing) {
  Model model(GetParam());
  const CalibrationSettings settings = Settings();
  const Divergences expected = Measure(model.decoder.get(), settings);

  auto probe = Probe::Create(model.decoder.get(), settings, Examples(settings));
  ASSERT_TRUE(probe.ok());
  Model other(GetParam());
  auto second =
      Probe::Create(model.decoder.get(), Settings(2, 30, 9), Examples(Settings(2, 30, 9)));
  ASSERT_TRUE(second.ok());
  while (!(*probe)->done()) {
    ASSERT_TRUE((*probe)->Step().ok());
    ASSERT_TRUE((*second)->Step().ok());  // expands other layers, uses the decoder's scratch
    ASSERT_TRUE((*second)->Step().ok());
  }
  EXPECT_EQ((*probe)->measurements().sensitivity, expected);
  EXPECT_TRUE((*second)->done());
}

TEST(ProbeLimitsTest, OnlyUnprotectedPositionsAreTouched) {
  Model model(ComputeType::kF32);
  // The attention of a window of one token over one free position: noise on it must show, and the
  // same free position must give the same numbers however the protected ones are divided.
  CalibrationSettings settings = Settings(2, 20, 4);
  settings.sinks = 19;
  settings.recent = 0;
  const Divergences last_free = Measure(model.decoder.get(), settings);
  settings.sinks = 0;
  settings.recent = 19;
  const Divergences first_free = Measure(model.decoder.get(), settings);
  settings.recent = 0;
  const Divergences all_free = Measure(model.decoder.get(), settings);
  for (size_t e = 0; e < 2; ++e) {
    for (size_t l = 0; l < 2; ++l) {
      EXPECT_GT(last_free[e][l], 0);
      EXPECT_GT(first_free[e][l], 0);
      EXPECT_NE(last_free[e][l], first_free[e][l]);
      EXPECT_LT(last_free[e][l], all_free[e][l]);
    }
  }
}

TEST(ProbeLimitsTest, ProgressCountsSlices) {
  Model model(ComputeType::kF32);
  const CalibrationSettings settings = Settings(3, 40, 70);
  auto probe = Probe::Create(model.decoder.get(), settings, Examples(settings), {2, 1});
  ASSERT_TRUE(probe.ok());
  EXPECT_EQ((*probe)->progress().examples_total, 3);
  EXPECT_EQ((*probe)->progress().fraction, 0);
  double fraction = 0;
  int examples = 0;
  int slices = 0;
  while (!(*probe)->done()) {
    ASSERT_TRUE((*probe)->Step().ok());
    ++slices;
    const ProbeProgress progress = (*probe)->progress();
    EXPECT_GT(progress.fraction, fraction);
    EXPECT_GE(progress.examples_done, examples);
    fraction = progress.fraction;
    examples = progress.examples_done;
  }
  // Three examples: in each of two layers the prefix, then one variant a slice, as a window is
  // longer than the prefix (one of layer 0; two of layer 1); two tiles of 64 window rows with two
  // variants each.
  EXPECT_EQ(slices, 3 * (2 + 1 + 2 + 2 * 2));
  EXPECT_EQ(fraction, 1);
  EXPECT_EQ(examples, 3);
  EXPECT_TRUE((*probe)->Step().ok());
  EXPECT_EQ((*probe)->progress().fraction, 1);
}

TEST(ProbeLimitsTest, HoldsOneLayerOfKeysAndValues) {
  TinyLlamaOptions shallow;
  TinyLlamaOptions deep;
  deep.layers = 12;
  Model two(ComputeType::kF32, 1, shallow);
  Model twelve(ComputeType::kF32, 1, deep);
  const CalibrationSettings settings = Settings(8, 200, 16);
  const auto bytes = [&](Decoder* decoder, int group) {
    return (*Probe::Create(decoder, settings, Examples(settings), {group, 1}))->scratch_bytes();
  };
  // Ten layers more add ten window states and divergences, no K and V.
  EXPECT_EQ(bytes(twelve.decoder.get(), 1) - bytes(two.decoder.get(), 1),
            10u * 16u * (64u * sizeof(float) + sizeof(double)));
  // An example more at once adds its hidden states.
  EXPECT_EQ(bytes(two.decoder.get(), 2) - bytes(two.decoder.get(), 1),
            (200u + 3u * 16u) * 64u * sizeof(float) + 2u * 16u * sizeof(double));
}

TEST(ProbeLimitsTest, ProgressCountsDamageToo) {
  Model model(ComputeType::kF32);
  const CalibrationSettings settings = DamageSettings();
  for (const Probe::Batching batching : {Probe::Batching{1, 1}, {4, 2}, {5, 3}, {100, 100}}) {
    auto probe = Probe::Create(model.decoder.get(), settings, Examples(settings), batching);
    ASSERT_TRUE(probe.ok());
    double fraction = 0;
    while (!(*probe)->done()) {
      ASSERT_TRUE((*probe)->Step().ok());
      EXPECT_GT((*probe)->progress().fraction, fraction);
      fraction = (*probe)->progress().fraction;
    }
    EXPECT_EQ(fraction, 1);
    EXPECT_EQ((*probe)->progress().examples_done, 3);
  }
}

TEST(ProbeLimitsTest, DamageTakesNoMoreWindowsAtOnce) {
  Model model(ComputeType::kF32);
  CalibrationSettings plain = Settings(8, 200, 16);
  CalibrationSettings damage = plain;
  damage.damage_examples = 8;
  damage.damage_retentions = {0.2, 0.5};
  damage.damage_storage = true;
  const auto bytes = [&](const CalibrationSettings& settings) {
    return (*Probe::Create(model.decoder.get(), settings, Examples(settings), {4, 1}))
        ->scratch_bytes();
  };
  // The selector's queries, the scores of four query heads and two KV
  // heads, what the kernel works in; three prefixes and clean windows fewer, as the alterations of
  // one example share them.
  KeyScoresArgs of_prefix = {.heads = 4,
                             .kv_heads = 2,
                             .head_dim = 16,
                             .rows = 200,
                             .queries = 32,
                             .kv_head_stride = 216 * 16,
                             .end = 200 - 32,
                             .pooling = Pooling::kMax};
  const size_t queries = 32 * 64;
  const auto scores =
      static_cast<size_t>(6 * of_prefix.end + KeyScoresWorkspaceFloats(of_prefix, 1));
  const size_t shared = 3 * (200 + 16) * 64;
  EXPECT_EQ(bytes(damage), bytes(plain) + (queries + scores - shared) * sizeof(float));
}

TEST(ProbeLimitsTest, BadInputIsNamed) {
  Model model(ComputeType::kF32);
  const CalibrationSettings settings = Settings();
  const auto status = [&](CalibrationSettings s, std::vector<std::vector<int32_t>> examples,
                          Probe::Batching batching = Probe::Batching()) {
    return Probe::Create(model.decoder.get(), s, std::move(examples), batching).status();
  };
  std::vector<std::vector<int32_t>> examples = Examples(settings);
  examples.pop_back();
  absl::Status s = status(settings, examples);
  EXPECT_EQ(s.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(s.message()), HasSubstr("3 examples, 2 were given"));

  examples = Examples(settings);
  examples[1].pop_back();
  s = status(settings, examples);
  EXPECT_EQ(s.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(s.message()), HasSubstr("example 1 has 90 tokens"));

  for (const int32_t id : {-1, 260}) {
    examples = Examples(settings);
    examples[2][5] = id;
    s = status(settings, examples);
    EXPECT_EQ(s.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(s.message()), HasSubstr("ids are 0 to 259"));
  }

  CalibrationSettings too_long = Settings(1, 500, 13);  // 513 > 512
  EXPECT_EQ(status(too_long, Examples(too_long)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status(settings, Examples(settings), {0, 1}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status(settings, Examples(settings), {1, 0}).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ripplekv
