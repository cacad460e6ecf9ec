#include "calibration/size_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "calibration/measured_plan.h"
#include "calibration/probe.h"
#include "calibration/staged_probe.h"
#include "tests/calibration/tiny_decoder.h"

namespace ripplekv {
namespace {

using testing::HasSubstr;
using Sizes = std::vector<std::vector<std::vector<double>>>;

constexpr int kLayers = 2;

constexpr KvShape kShape = {.kv_heads = 2, .head_dim = 16};

CalibrationSettings Settings() {
  CalibrationSettings settings;
  settings.examples = 2;
  settings.prefix_tokens = 70;
  settings.window_tokens = 21;
  settings.recent = 8;
  settings.sizes.examples = 2;
  settings.sizes.prompt_tokens = {70, 120};
  settings.sizes.retentions = {0.6, 0.8, 1};
  settings.sizes.kv_types = KvType::kBf16;
  return settings;
}

Plan PlanOf(const CalibrationSettings& settings, const Decoder& decoder, Allocator allocator) {
  PlanSpec spec;
  spec.layers = kLayers;
  spec.allocator = std::move(allocator);
  spec.min_positions = 0;
  spec.selector = settings.selector;
  spec.sinks = settings.sinks;
  spec.kv_types = settings.sizes.kv_types.value_or(decoder.kv_type());
  spec.kv_shape = kShape;
  return *Plan::Make(spec);
}

std::vector<std::vector<int32_t>> Tokens(const CalibrationSettings& settings) {
  return RandomTokens(settings.sizes.examples, settings.size_example_tokens());
}

Sizes Measure(Decoder* decoder, const CalibrationSettings& settings, const Plan& plan) {
  auto probe = SizeProbe::Create(decoder, settings, plan, Tokens(settings));
  EXPECT_TRUE(probe.ok()) << probe.status();
  if (!probe.ok()) return {};
  double fraction = 0;
  while (!(*probe)->done()) {
    const absl::Status status = (*probe)->Step();
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok()) break;
    EXPECT_GT((*probe)->progress().fraction, fraction);
    fraction = (*probe)->progress().fraction;
  }
  EXPECT_EQ(fraction, 1);
  return (*probe)->measurements().sizes;
}

class SizeProbeTest : public testing::TestWithParam<ComputeType> {
 protected:
  TinyDecoder one_{GetParam(), 1};
  TinyDecoder two_{GetParam(), 2};
  Decoder* const decoder_ = one_.decoder.get();
};

INSTANTIATE_TEST_SUITE_P(Compute, SizeProbeTest,
                         testing::Values(ComputeType::kF32, ComputeType::kBf16),
                         [](const auto& info) { return std::string(ComputeTypeName(info.param)); });

TEST_P(SizeProbeTest, AllRowsAsTheyAreAreExactlyZero) {
  CalibrationSettings settings = Settings();
  settings.sizes.kv_types = decoder_->kv_type();
  const Sizes sizes = Measure(decoder_, settings, PlanOf(settings, *decoder_, UniformAllocator{}));
  ASSERT_EQ(sizes.size(), 2u);
  for (const auto& example : sizes) {
    ASSERT_EQ(example.size(), 2u);
    for (const auto& lengths : example) {
      ASSERT_EQ(lengths.size(), 3u);
      EXPECT_GT(lengths[0], 0);
      EXPECT_GT(lengths[1], 0);
      EXPECT_EQ(lengths[2], 0.0);
    }
  }
  EXPECT_NE(sizes[0], sizes[1]);
  EXPECT_NE(sizes[0][0], sizes[0][1]);
}

TEST_P(SizeProbeTest, OneLayerCompressedIsItsDamage) {
  CalibrationSettings settings = Settings();
  settings.damage_examples = 2;
  settings.damage_retentions = {0.6};
  settings.sizes.prompt_tokens = {70};
  settings.sizes.kv_types = decoder_->kv_type();
  auto probe = Probe::Create(decoder_, settings, Tokens(settings));
  ASSERT_TRUE(probe.ok()) << probe.status();
  while (!(*probe)->done()) ASSERT_TRUE((*probe)->Step().ok());
  const auto& damage = (*probe)->measurements().rows;
  for (size_t l = 0; l < kLayers; ++l) {
    PositionsAllocator positions{{70, 70}};
    positions.positions[l] = 42;
    const Sizes sizes = Measure(decoder_, settings, PlanOf(settings, *decoder_, positions));
    for (size_t e = 0; e < 2; ++e) EXPECT_EQ(sizes[e][0][0], damage[e][l][0]);
  }
}

TEST_P(SizeProbeTest, BitsDoNotDependOnThreadsOrOtherWork) {
  CalibrationSettings settings = Settings();
  settings.selector = H2o{.window = 8, .queries = 40};
  // A prompt of more than one slice, a window of more than one chunk and several tiles.
  TinyLlamaOptions options;
  options.context_length = 2048;
  TinyDecoder one(GetParam(), 1, options), two(GetParam(), 2, options);
  settings.window_tokens = Decoder::kChunkTokens + 21;
  settings.sizes.prompt_tokens = {70, 1100};
  const MultipliersAllocator uneven{{1, 1.3}};
  const Plan plan = PlanOf(settings, *one.decoder, uneven);
  const Sizes expected = Measure(one.decoder.get(), settings, plan);
  EXPECT_EQ(Measure(two.decoder.get(), settings, plan), expected);

  auto probe = SizeProbe::Create(one.decoder.get(), settings, plan, Tokens(settings));
  CalibrationSettings small = Settings();
  small.sizes.prompt_tokens = {65};
  auto other = SizeProbe::Create(one.decoder.get(), small,
                                 PlanOf(small, *decoder_, UniformAllocator{}), Tokens(small));
  ASSERT_TRUE(probe.ok() && other.ok()) << probe.status() << other.status();
  while (!(*probe)->done()) {
    ASSERT_TRUE((*probe)->Step().ok());
    ASSERT_TRUE((*other)->Step().ok());
  }
  EXPECT_EQ((*probe)->measurements().sizes, expected);
}

TEST_P(SizeProbeTest, FewerBitsCostMoreAndShorterPromptsAreSuffixes) {
  CalibrationSettings settings = Settings();
  const auto of_types = [&](KvTypes types) {
    settings.sizes.kv_types = types;
    return Measure(decoder_, settings, PlanOf(settings, *decoder_, UniformAllocator{}));
  };
  const Sizes int8 = of_types(KvType::kInt8), int4 = of_types(KvType::kInt4);
  // Of all rows; of one window alone rounding may hide what few bits cost, and bf16's of all of
  // them.
  const auto sum = [](const Sizes& sizes) {
    return sizes[0][0][2] + sizes[0][1][2] + sizes[1][0][2] + sizes[1][1][2];
  };
  EXPECT_GT(sum(int8), 0);
  if (GetParam() == ComputeType::kF32) EXPECT_GT(sum(int4), sum(int8));
  // The prompt of 70 tokens before the same window, alone.
  auto tokens = Tokens(settings);
  for (auto& example : tokens) example.erase(example.begin(), example.end() - 91);
  settings.sizes.prompt_tokens = {70};
  auto probe = SizeProbe::Create(decoder_, settings,
                                 PlanOf(settings, *decoder_, UniformAllocator{}), tokens);
  ASSERT_TRUE(probe.ok()) << probe.status();
  while (!(*probe)->done()) ASSERT_TRUE((*probe)->Step().ok());
  EXPECT_EQ((*probe)->measurements().sizes[1][0], int4[1][0]);
}

TEST_P(SizeProbeTest, IsTheSecondStageUnderThePlanOfTheFirst) {
  CalibrationSettings settings = Settings();
  settings.damage_examples = 1;
  settings.damage_retentions = {0.6, 0.8};
  settings.damage_storage = true;
  const auto examples = RandomTokens(2, settings.example_tokens());
  for (const bool chooses : {false, true}) {
    settings.sizes.allocator = RippleAllocator{.r = 3};
    if (chooses) {
      settings.sizes.allocator = DamageCurvesAllocator{};
      settings.sizes.kv_types.reset();
    }
    auto staged = MakeCalibrationProbe(decoder_, settings, {examples, Tokens(settings)});
    ASSERT_TRUE(staged.ok()) << staged.status();
    double fraction = 0;
    EXPECT_EQ((*staged)->progress().examples_total, 4);
    while (!(*staged)->done()) {
      const absl::Status status = (*staged)->Step();
      ASSERT_TRUE(status.ok()) << status;
      const ProbeProgress progress = (*staged)->progress();
      EXPECT_GE(progress.fraction, fraction);
      EXPECT_EQ(progress.examples_total, 4);
      fraction = progress.fraction;
    }
    EXPECT_EQ(fraction, 1);
    EXPECT_EQ((*staged)->progress().examples_done, 4);

    auto probe = Probe::Create(decoder_, settings, examples);
    ASSERT_TRUE(probe.ok());
    while (!(*probe)->done()) ASSERT_TRUE((*probe)->Step().ok());
    const ProbeMeasurements& first = (*probe)->measurements();
    EXPECT_EQ((*staged)->measurements().sensitivity, first.sensitivity);
    EXPECT_EQ((*staged)->measurements().rows, first.rows);
    Profile profile;
    profile.key.settings = settings;
    profile.layers = kLayers;
    SummariseMeasurements(first, profile);
    const absl::StatusOr<Plan> plan = SizePlan(profile, kShape);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->chooses_types(), chooses);
    EXPECT_EQ((*staged)->measurements().sizes, Measure(decoder_, settings, *plan));
  }
}

TEST(SizeProbeErrorsTest, NameWhatDoesNotFit) {
  TinyDecoder model(ComputeType::kF32);
  const CalibrationSettings settings = Settings();
  const Plan plan = PlanOf(settings, *model.decoder, UniformAllocator{});
  const auto message = [&](std::vector<std::vector<int32_t>> tokens, const Plan& plan) {
    const absl::Status status =
        SizeProbe::Create(model.decoder.get(), settings, plan, std::move(tokens)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  auto tokens = Tokens(settings);
  tokens[1].pop_back();
  EXPECT_THAT(message(tokens, plan), HasSubstr("example 1 of the sizes has 140 tokens; 141 are"));
  tokens = Tokens(settings);
  tokens[0][3] = 260;
  EXPECT_THAT(message(tokens, plan), HasSubstr("ids are 0 to 259"));
  tokens.pop_back();
  EXPECT_THAT(message(tokens, plan), HasSubstr("the sizes of 2 examples, 1 were given"));
  PlanSpec deep = plan.spec();
  deep.layers = 3;
  EXPECT_THAT(message(Tokens(settings), *Plan::Make(deep)),
              HasSubstr("the plan is of 3 layers, the model has 2"));
}

}  // namespace
}  // namespace ripplekv
