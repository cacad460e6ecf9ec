#include "client/size_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_split.h"
#include "client/profile_view.h"
#include "client/utf8.h"
#include "tests/client/message_builders.h"

namespace ripplekv {
namespace {

using testing::HasSubstr;

// Two retentions at two lengths: retention / length * 100.
v1::GetProfileResponse Sized() {
  v1::GetProfileResponse response = TestProfile({0.02, 0.5});
  v1::Profile& profile = *response.mutable_profile();
  v1::CalibrationSettings& settings = *profile.mutable_settings();
  settings.set_size_examples(12);
  settings.mutable_size_allocator()->mutable_uniform();
  settings.mutable_selector()->mutable_streaming_llm()->set_window(32);
  settings.set_size_key_type(v1::KV_TYPE_INT8);
  settings.set_size_value_type(v1::KV_TYPE_INT4);
  for (const double retention : {0.05, 0.5}) settings.add_size_retentions(retention);
  for (const int tokens : {1000, 2000}) {
    settings.add_size_prompt_tokens(tokens);
    for (const double retention : {0.05, 0.5}) {
      v1::SizeDamage& size = *profile.add_sizes();
      size.set_prompt_tokens(tokens);
      size.set_retention(retention);
      size.mutable_damage()->set_mean_kl(100 * retention / tokens);
      size.mutable_damage()->set_standard_error(10 * retention / tokens);
    }
  }
  return response;
}

TEST(SizeViewTest, ALineARetentionAndAColumnALength) {
  const v1::GetProfileResponse response = Sized();
  const std::string view = RenderSizes(response.profile(), {.utf8 = true, .width = 200});
  EXPECT_THAT(view, HasSubstr("every layer compressed · ± standard error · 12 examples · uniform · "
                              "StreamingLLM (window 32) · keys in int8, values in int4\n"));
  EXPECT_THAT(view, HasSubstr(" retention       1,000 tokens       2,000 tokens\n"
                              "      0.05     0.005 ± 0.0005   0.0025 ± 0.00025\n"
                              "       0.5       0.05 ± 0.005     0.025 ± 0.0025\n"));
  EXPECT_THAT(RenderProfile(response, ChartScale::kAuto, {.utf8 = true, .width = 200}),
              HasSubstr(view));
}

TEST(SizeViewTest, NarrowTerminalsGetBlocksOfColumns) {
  v1::GetProfileResponse response = Sized();
  for (int width = 60; width <= 120; ++width) {
    const std::string view = RenderSizes(response.profile(), {.width = width});
    for (const absl::string_view line : absl::StrSplit(view, '\n')) {
      ASSERT_LE(Columns(line), width) << line;
    }
  }
  response.mutable_profile()->mutable_settings()->clear_size_key_type();
  response.mutable_profile()->mutable_settings()->clear_size_value_type();
  response.mutable_profile()->mutable_settings()->set_size_chooses_types(true);
  for (v1::SizeDamage& size : *response.mutable_profile()->mutable_sizes()) {
    size.mutable_damage()->clear_standard_error();
  }
  const std::string view = RenderSizes(response.profile(), {.width = 30});
  EXPECT_THAT(view, HasSubstr("types chosen layer by layer"));
  EXPECT_THAT(view, HasSubstr(" retention       1,000 tokens\n"
                              "      0.05              0.005\n"
                              "       0.5               0.05\n"
                              " retention       2,000 tokens\n"
                              "      0.05             0.0025\n"
                              "       0.5              0.025\n"));
}

TEST(SizeViewTest, WhatWasNotMeasuredIsNotShown) {
  EXPECT_EQ(RenderSizes(TestProfile({0.02, 0.5}).profile(), {}), "");
  EXPECT_EQ(RenderSizes(v1::Profile(), {}), "");
  v1::GetProfileResponse odd = Sized();
  odd.mutable_profile()->mutable_sizes()->RemoveLast();
  EXPECT_EQ(RenderSizes(odd.profile(), {}), "");
}

}  // namespace
}  // namespace ripplekv
