#include "client/profile_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/str_split.h"
#include "client/utf8.h"
#include "tests/client/message_builders.h"

namespace ripplekv {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(ProfileViewTest, SaysOriginValuesAndRatios) {
  const std::string view =
      RenderProfile(TestProfile({0.02, 0.5, 0.1}), ChartScale::kAuto, {.utf8 = true, .width = 100});
  EXPECT_THAT(view, HasSubstr(std::string(64, 'c') + " · in force\n"));
  EXPECT_THAT(
      view,
      HasSubstr("24 examples · corpus default · prefix 1,024 · window 64 · eta 0.5 · sinks 4"));
  EXPECT_THAT(view, HasSubstr("seed 0"));
  EXPECT_THAT(
      view,
      HasSubstr("2026-09-10 00:26 UTC · took 42.0 s · on host1 · 2 threads · RippleKV 0.1.0"));
  EXPECT_THAT(view, HasSubstr("linear scale from 0 to 0.5\n"));
  EXPECT_THAT(view, HasSubstr("0.0200 ± 0.0020\n"));
  EXPECT_THAT(view, HasSubstr("0.5000 ± 0.0500\n"));
  EXPECT_THAT(view, HasSubstr("25 (layer 1 / layer 0)\n"));
  EXPECT_THAT(view, HasSubstr("split-half Spearman 0.750\n"));
}

TEST(ProfileViewTest, TheScaleIsAsAskedAndSaid) {
  const std::vector<double> skewed = {10, 0.1, 0.2, 0.1};
  EXPECT_THAT(RenderProfile(TestProfile(skewed), ChartScale::kAuto, {}),
              HasSubstr("logarithmic scale from 0.05 to 10"));
  EXPECT_THAT(RenderProfile(TestProfile(skewed), ChartScale::kLog, {}),
              HasSubstr("logarithmic scale"));
  EXPECT_THAT(RenderProfile(TestProfile(skewed), ChartScale::kLinear, {}),
              HasSubstr("linear scale from 0 to 10"));
  EXPECT_THAT(RenderProfile(TestProfile({0.1, 0.2}), ChartScale::kLog, {}),
              HasSubstr("logarithmic scale"));
}

TEST(ProfileViewTest, TinyValuesTakeExponents) {
  EXPECT_THAT(RenderProfile(TestProfile({0.000123, 0.5}), ChartScale::kAuto, {.width = 100}),
              HasSubstr("0.000123 +- 0.000012"));
  EXPECT_THAT(RenderProfile(TestProfile({1e-9, 2e-9}), ChartScale::kAuto, {.width = 100}),
              HasSubstr("1.00e-09 +- 1.00e-10"));
}

TEST(ProfileViewTest, ConstantZeroAndEmptyProfilesAreFreeOfNan) {
  for (const std::vector<double>& values :
       {std::vector<double>(30, 0.5), std::vector<double>(30, 0.0),
        std::vector<double>{0, 1e-300, 0.5}, std::vector<double>{}}) {
    for (const ChartScale scale : {ChartScale::kAuto, ChartScale::kLinear, ChartScale::kLog}) {
      const std::string view = RenderProfile(TestProfile(values), scale, {.utf8 = true});
      EXPECT_THAT(view, Not(HasSubstr("nan")));
      EXPECT_THAT(view, Not(HasSubstr("inf\n")));
      EXPECT_THAT(view, Not(HasSubstr("-inf")));
    }
  }
  EXPECT_THAT(RenderProfile(TestProfile({0, 0.5}), ChartScale::kAuto, {}),
              HasSubstr("not defined: the least is 0 (layer 0)"));
  EXPECT_THAT(RenderProfile(TestProfile({0.5, 0.5}), ChartScale::kAuto, {}),
              HasSubstr("1 (layer 0 / layer 0)"));
}

TEST(ProfileViewTest, OneExampleHasNoErrorsAndNoHalves) {
  v1::GetProfileResponse response = TestProfile({0.5, 0.25});
  response.mutable_profile()->set_examples_measured(1);
  response.mutable_profile()->clear_split_half_spearman();
  for (auto& layer : *response.mutable_profile()->mutable_layers()) layer.clear_standard_error();
  const std::string view = RenderProfile(response, ChartScale::kAuto, {.utf8 = true});
  EXPECT_THAT(view, HasSubstr("1 of 24 examples"));
  EXPECT_THAT(view, HasSubstr(" 0.500\n"));
  EXPECT_THAT(view, HasSubstr("not defined (fewer than 4 examples"));
}

TEST(ProfileViewTest, EveryWidthIsKept) {
  std::vector<double> values;
  for (int l = 0; l < 30; ++l) values.push_back(0.001 * (l + 1));
  for (int width = 80; width <= 200; ++width) {
    for (const absl::string_view line : absl::StrSplit(
             RenderProfile(TestProfile(values), ChartScale::kAuto, {.utf8 = true, .width = width}),
             '\n')) {
      ASSERT_LE(Columns(line), width) << line;
    }
  }
  // Narrower than an id with its label: only that line sticks out.
  for (int width = 40; width < 80; ++width) {
    for (const absl::string_view line : absl::StrSplit(
             RenderProfile(TestProfile(values), ChartScale::kAuto, {.utf8 = true, .width = width}),
             '\n')) {
      if (line.find("cccc") != absl::string_view::npos) continue;
      ASSERT_LE(Columns(line), width) << line;
    }
  }
}

TEST(ProfileViewTest, CalibrationInOneParagraph) {
  v1::CalibrationComplete complete;
  *complete.mutable_profile() = TestProfile({0.5, 0.25}).profile();
  complete.set_in_force(true);
  EXPECT_EQ(RenderCalibration(complete),
            "Profile " + std::string(64, 'c') +
                " of SmolLM2: 24 examples of corpus default, measured in 42.0 s. Split-half rank "
                "agreement: 0.750. It is in "
                "force: the server sizes its KV pools by it from now on.");
  complete.set_from_store(true);
  complete.set_in_force(false);
  const std::string stored = RenderCalibration(complete);
  EXPECT_THAT(stored, HasSubstr("found in the store (measured 2026-09-10 00:26 UTC in 42.0 s"));
  EXPECT_THAT(stored, HasSubstr("not in force"));
}

}  // namespace
}  // namespace ripplekv
