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
