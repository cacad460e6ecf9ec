#include "calibration/settings.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace ripplekv {
namespace {

std::string Message(const CalibrationSettings& settings, int64_t context_length = 8192) {
  const absl::Status status = settings.Validate(context_length);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(SettingsTest, DefaultsAndLimitsAreValid) {
  EXPECT_TRUE(CalibrationSettings{}.Validate(8192).ok());
  EXPECT_TRUE(CalibrationSettings{}.Validate(1088).ok());
  const CalibrationSettings least{.examples = 1,
                                  .prefix_tokens = 2,
                                  .window_tokens = 1,
                                  .eta = 0,
                                  .sinks = 0,
                                  .recent = 1,
                                  .seed = UINT64_MAX};
  EXPECT_TRUE(least.Validate(3).ok());
  const CalibrationSettings most{.examples = 4096,
                                 .prefix_tokens = 1048576,
                                 .window_tokens = 65536,
                                 .eta = 10,
                                 .sinks = 65536,
                                 .recent = 65536,
                                 .damage_examples = 4096,
                                 .damage_retentions = {0.0626, 0.999999},
                                 .damage_storage = true};
  EXPECT_TRUE(most.Validate(1048576 + 65536).ok());
}

TEST(SettingsTest, ErrorsNameFieldValueAndRange) {
  EXPECT_EQ(Message({.examples = 0}), "examples is 0: must be between 1 and 4096");
  EXPECT_EQ(Message({.examples = 4097}), "examples is 4097: must be between 1 and 4096");
  EXPECT_EQ(Message({.prefix_tokens = 1}), "prefix_tokens is 1: must be between 2 and 1048576");
  EXPECT_EQ(Message({.prefix_tokens = 1048577}, INT64_MAX),
            "prefix_tokens is 1048577: must be between 2 and 1048576");
  EXPECT_EQ(Message({.window_tokens = 0}), "window_tokens is 0: must be between 1 and 65536");
  EXPECT_EQ(Message({.window_tokens = 65537}, INT64_MAX),
            "window_tokens is 65537: must be between 1 and 65536");
  EXPECT_EQ(Message({.eta = -0.1}), "eta is -0.1: must be between 0 and 10");
  EXPECT_EQ(Message({.eta = 10.5}), "eta is 10.5: must be between 0 and 10");
  EXPECT_EQ(Message({.eta = std::nan("")}), "eta is nan: must be between 0 and 10");
  EXPECT_EQ(Message({.sinks = -1}), "sinks is -1: must be between 0 and 65536");
  EXPECT_EQ(Message({.recent = -1}), "recent is -1: must be between 0 and 65536");
  EXPECT_EQ(Message({.prefix_tokens = 36}),
            "sinks + recent is 36 (4 + 32): must be below prefix_tokens (36), so that a position "
            "is left to perturb");
  EXPECT_EQ(Message({}, 1087),
            "prefix_tokens + window_tokens is 1088 (1024 + 64): must be at most the model's "
            "context length, 1087");
}

TEST(SettingsTest, DamageErrorsNameFieldValueAndRange) {
  EXPECT_EQ(Message({.damage_examples = -1}), "damage_examples is -1: must be between 0 and 24");
  EXPECT_EQ(Message({.damage_examples = 25, .damage_storage = true}),
            "damage_examples is 25: must be between 0 and 24");
  EXPECT_EQ(Message({.damage_storage = true}),
            "damage_examples is 0: must be at least 1 where damage_retentions or damage_storage "
            "ask for a measurement");
  EXPECT_EQ(Message({.damage_examples = 1}),
            "damage_examples is 1: must be 0 where neither damage_retentions nor damage_storage "
            "ask for a measurement");
  const auto of = [](std::vector<double> retentions) {
    return Message({.damage_examples = 1, .damage_retentions = std::move(retentions)});
  };
  EXPECT_EQ(of({0.0}), "damage_retentions[0] is 0: must be above 0 and below 1");
  EXPECT_EQ(of({0.5, 1.0}), "damage_retentions[1] is 1: must be above 0 and below 1");
  EXPECT_EQ(of({std::nan("")}), "damage_retentions[0] is nan: must be above 0 and below 1");
  EXPECT_EQ(of({0.5, 0.5}), "damage_retentions[1] is 0.5: must be above the one before, 0.5");
  EXPECT_EQ(of({0.02}),
            "damage_retentions[0] is 0.02, 20 of 1024 prefix rows: must keep at least 36, the 4 "
            "sinks and the selector's window of 32");
  EXPECT_EQ(of(std::vector<double>(17, 0.5)),
            "damage_retentions has 17 values: must be at most 16");
}

CalibrationSettings Sized() {
  CalibrationSettings settings;
  settings.sizes = {.examples = 4096,
                    .prompt_tokens = {1024, 2048},
                    .retentions = {0.05, 1},
                    .kv_types = KvType::kInt8};
  return settings;
}

TEST(SettingsTest, SizesAreValid) {
  EXPECT_TRUE(Sized().Validate(2112).ok());
  CalibrationSettings settings = Sized();
  settings.sizes.prompt_tokens = {10};  // shorter than what is always kept: whole
  settings.sizes.retentions = {1};
  EXPECT_TRUE(settings.Validate(8192).ok());
  settings = Sized();
  settings.damage_examples = 1;
  settings.damage_retentions = {0.1};
  settings.damage_storage = true;
  settings.sizes.allocator = DamageCurvesAllocator{};
  settings.sizes.kv_types.reset();
  settings.selector = H2o{};
  EXPECT_TRUE(settings.Validate(8192).ok()) << settings.Validate(8192);
}

TEST(SettingsTest, SizeErrorsNameFieldValueAndRange) {
  const auto of = [](auto change, int64_t context_length = 8192) {
    CalibrationSettings settings = Sized();
    change(settings);
    return Message(settings, context_length);
  };
  EXPECT_EQ(of([](auto& s) { s.sizes.examples = 4097; }),
            "size_examples is 4097: must be between 0 and 4096");
  EXPECT_EQ(of([](auto& s) { s.sizes.examples = 0; }),
            "size_examples is 0: must be at least 1 where other size_... fields are given");
  EXPECT_EQ(of([](auto& s) { s.sizes.prompt_tokens.clear(); }),
            "size_prompt_tokens has 0 values: must be 1 to 8");
  EXPECT_EQ(of([](auto& s) { s.sizes.prompt_tokens = {1}; }),
            "size_prompt_tokens[0] is 1: must be between 2 and 1048576");
  EXPECT_EQ(of([](auto& s) { s.sizes.prompt_tokens = {2048, 2048}; }),
            "size_prompt_tokens[1] is 2048: must be above the one before, 2048");
  EXPECT_EQ(of([](auto&) {}, 2111),
            "size_prompt_tokens[1] + window_tokens is 2112 (2048 + 64): must be at most the "
            "model's context length, 2111");
  EXPECT_EQ(of([](auto& s) { s.sizes.retentions.clear(); }),
            "size_retentions is empty: must be 1 to 16 values");
  EXPECT_EQ(of([](auto& s) { s.sizes.retentions = {0.5, 1.5}; }),
            "size_retentions[1] is 1.5: must be above 0 and at most 1");
  EXPECT_EQ(of([](auto& s) { s.sizes.retentions = {0.5, 0.5}; }),
            "size_retentions[1] is 0.5: must be above the one before, 0.5");
  EXPECT_EQ(of([](auto& s) { s.sizes.retentions.assign(17, 0.5); }),
            "size_retentions has 17 values: must be at most 16");
  EXPECT_EQ(of([](auto& s) { s.sizes.retentions[0] = 0.036; }),
            "size_retentions[0] is 0.036, 36 of 1024 rows: must keep at least 37, the 4 sinks, the "
            "selector's window of 32 and one more");
  EXPECT_EQ(of([](auto& s) { s.sinks = 1025, s.recent = 0, s.prefix_tokens = 2000; }),
            "sinks is 1025: must be between 0 and 1024");
  EXPECT_EQ(of([](auto& s) { s.sizes.allocator = RippleAllocator{.r = 0}; }),
            "size_allocator: ripple.r is 0: must be between 1 and 1000000");
  EXPECT_EQ(of([](auto& s) { s.sizes.allocator = PositionsAllocator{{5}}; }),
            "size_allocator is positions: must be another, since its sizes do not vary, where "
            "size_examples are measured");
  EXPECT_EQ(of([](auto& s) { s.sizes.allocator = DamageCurvesAllocator{}; }),
            "size_allocator is damage_curves: needs damage_examples with damage_retentions where "
            "size_examples are measured");
  EXPECT_EQ(of([](auto& s) { s.sizes.kv_types.reset(); }),
            "size_allocator is uniform: must be damage_curves where the plan chooses types "
            "(size_chooses_types) where size_examples are measured");
  const auto damaged = [&](auto change) {
    return of([&](auto& s) {
      s.damage_examples = 1;
      s.damage_retentions = {0.1};
      change(s);
    });
  };
  EXPECT_EQ(damaged([](auto& s) {
              s.sizes.allocator = DamageCurvesAllocator{};
              s.sizes.kv_types.reset();
            }),
            "size_allocator is damage_curves: needs damage_storage where the plan chooses types "
            "(size_chooses_types) where size_examples are measured");
  EXPECT_EQ(damaged([](auto& s) { s.sizes.allocator = IsolatedDamageAllocator{{}, 0.05}; }),
            "size_allocator is isolated_damage: its retention, 0.05, must be at least the first of "
            "damage_retentions, 0.1, where size_examples are measured");
  EXPECT_EQ(of([](auto& s) { s.selector = SnapKv{.kernel = 2}; }),
            "selector: snapkv.kernel is 2: must be odd and between 1 and 63");
  EXPECT_EQ(Message({.selector = H2o{}}),
            "selector is h2o: must be absent where neither damage_retentions nor size_examples ask "
            "for rows to be chosen");
}

TEST(SettingsTest, DefaultSizesFitModelPrefixAndSelector) {
  CalibrationSettings settings;
  using Prompts = std::vector<int64_t>;
  EXPECT_EQ(settings.DefaultSizePrompts(8192), (Prompts{1024, 2048, 4096}));
  EXPECT_EQ(settings.DefaultSizePrompts(4160), (Prompts{1024, 2048, 4096}));
  EXPECT_EQ(settings.DefaultSizePrompts(4159), (Prompts{1024, 2048}));
  EXPECT_EQ(settings.DefaultSizePrompts(1088), Prompts{1024});
  settings.sizes.prompt_tokens = {1024};
  EXPECT_EQ(settings.DefaultSizeRetentions(), (std::vector<double>{0.05, 0.1, 0.2, 0.3, 0.5, 1}));
  settings.selector = StreamingLlm{.window = 100};
  EXPECT_EQ(settings.DefaultSizeRetentions(), (std::vector<double>{0.2, 0.3, 0.5, 1}));
  settings.sizes.prompt_tokens = {60};
  EXPECT_EQ(settings.DefaultSizeRetentions(), std::vector<double>{1});
}

TEST(SettingsTest, RetentionsKeepRowsAsPlansDo) {
  CalibrationSettings settings;
  EXPECT_EQ(settings.DamageRows(0.1), 102);
  settings.prefix_tokens = 100;
  EXPECT_EQ(settings.DamageRows(0.29), 29);  // 28.999999999999996 in binary
  EXPECT_EQ(settings.DamageRows(1), 100);
}

TEST(SettingsTest, DefaultRetentionsFitThePrefix) {
  const auto of = [](int prefix, int sinks) {
    CalibrationSettings settings;
    settings.prefix_tokens = prefix;
    settings.sinks = sinks;
    settings.damage_retentions = settings.DefaultDamageRetentions();
    settings.damage_examples = 1;
    settings.damage_storage = true;
    EXPECT_TRUE(settings.Validate(8192).ok());
    return settings.damage_retentions;
  };
  EXPECT_EQ(of(1024, 4), (std::vector<double>{0.04, 0.06, 0.1, 0.2, 0.4, 0.7}));
  EXPECT_EQ(of(256, 4), (std::vector<double>{0.2, 0.4, 0.7}));
  EXPECT_EQ(of(256, 30), (std::vector<double>{0.4, 0.7}));
  EXPECT_EQ(of(40, 4), std::vector<double>());
}

}  // namespace
}  // namespace ripplekv
