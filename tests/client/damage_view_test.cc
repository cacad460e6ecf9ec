#include "client/damage_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/str_split.h"
#include "client/profile_view.h"
#include "client/utf8.h"
#include "tests/client/message_builders.h"

namespace ripplekv {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(DamageViewTest, ALineALayerAndTheRankings) {
  const v1::GetProfileResponse response = TestDamageProfile({0.02, 0.5});
  const std::string view = RenderDamage(response.profile(), {.utf8 = true, .width = 200});
  EXPECT_THAT(view,
              HasSubstr("one layer compressed alone: rows kept, storage · last 8 examples\n"));
  EXPECT_THAT(view, HasSubstr("layer        4 %       10 %       int8  int8:int4\n"
                              "    0       0.02      0.002     0.0002      0.001\n"
                              "    1        0.5       0.05      0.005      0.025\n"));
  EXPECT_THAT(view, HasSubstr("Spearman with the damage at 10 % [95 % interval]"));
  EXPECT_THAT(view, HasSubstr("s_l: 0.870 [0.750, 0.900]"));
  EXPECT_THAT(view, HasSubstr("layer index: -0.020 [-0.100, 0.050]"));
  EXPECT_THAT(view, HasSubstr("local response: not defined"));
  EXPECT_THAT(RenderProfile(response, ChartScale::kAuto, {.utf8 = true, .width = 200}),
              HasSubstr(view));
}

TEST(DamageViewTest, NarrowTerminalsGetBlocksOfColumns) {
  const v1::GetProfileResponse response = TestDamageProfile({0.02, 0.5});
  const std::string view = RenderDamage(response.profile(), {.utf8 = true, .width = 30});
  EXPECT_THAT(view, HasSubstr("layer        4 %       10 %\n"
                              "    0       0.02      0.002\n"
                              "    1        0.5       0.05\n"
                              "layer       int8  int8:int4\n"
                              "    0     0.0002      0.001\n"
                              "    1      0.005      0.025\n"));
  for (int width = 80; width <= 200; ++width) {
    for (const absl::string_view line :
         absl::StrSplit(RenderDamage(response.profile(), {.utf8 = true, .width = width}), '\n')) {
      ASSERT_LE(Columns(line), width) << line;
    }
  }
}

TEST(DamageViewTest, WhatWasNotMeasuredIsNotShown) {
  EXPECT_EQ(RenderDamage(TestProfile({0.02, 0.5}).profile(), {}), "");
  EXPECT_EQ(RenderDamage(v1::Profile(), {}), "");
  v1::GetProfileResponse storage = TestDamageProfile({0.02, 0.5});
  storage.mutable_profile()->clear_damage_agreement();
  for (auto& layer : *storage.mutable_profile()->mutable_layers()) layer.clear_retentions();
  const std::string view = RenderDamage(storage.profile(), {});
  EXPECT_THAT(view, HasSubstr("layer       int8  int8:int4\n"));
  EXPECT_THAT(view, Not(HasSubstr("Spearman")));
}

}  // namespace
}  // namespace ripplekv
