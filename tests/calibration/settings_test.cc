#include "calibration/settings.h"

#include <cmath>
#include <string>

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
                                 .recent = 65536};
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

}  // namespace
}  // namespace ripplekv
