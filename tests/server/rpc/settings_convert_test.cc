#include "server/rpc/settings_convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ripplekv {
namespace {

using testing::HasSubstr;

CalibrationSettings Example() {
  return {.examples = 5,
          .prefix_tokens = 100,
          .window_tokens = 7,
          .eta = 0.1,
          .sinks = 3,
          .recent = 9,
          .seed = 18446744073709551615u};
}

CalibrationSettings Damage() {
  CalibrationSettings settings = Example();
  settings.damage_examples = 2;
  settings.damage_retentions = {0.4, 0.7};
  settings.damage_storage = true;
  settings.selector = RecentAttention{.window = 16};
  return settings;
}

CalibrationSettings Sizes() {
  CalibrationSettings settings = Example();
  settings.selector = MixedAttention{.weight = 0.25};
  settings.sizes = {.examples = 3,
                    .prompt_tokens = {100, 200},
                    .retentions = {0.5, 1},
                    .allocator = RippleAllocator{.r = 7},
                    .kv_types = KvTypes(KvType::kInt8, KvType::kInt4)};
  return settings;
}

TEST(SettingsFromProto, TakesZerosThatAreThere) {
  const CalibrationSettings defaults = Example();
  v1::CalibrationSettings proto;
  EXPECT_EQ(*SettingsFromProto(proto, defaults), defaults);
  proto.set_eta(0);
  proto.set_sinks(0);
  proto.set_seed(0);
  CalibrationSettings expected = defaults;
  expected.eta = 0;
  expected.sinks = 0;
  expected.seed = 0;
  EXPECT_EQ(*SettingsFromProto(proto, defaults), expected);
}

TEST(SettingsFromProto, IsTheInverseOfSettingsToProto) {
  CalibrationSettings chosen = Damage();
  chosen.sizes = Sizes().sizes;
  chosen.sizes.allocator = DamageCurvesAllocator{.least_share = 0.5};
  chosen.sizes.kv_types.reset();
  for (const CalibrationSettings& settings : {Example(), Damage(), Sizes(), chosen}) {
    EXPECT_EQ(*SettingsFromProto(SettingsToProto(settings), CalibrationSettings()), settings);
  }
}

TEST(SettingsFromProto, NamesWhatIsWrong) {
  const auto message = [](const v1::CalibrationSettings& proto) {
    const absl::Status status = SettingsFromProto(proto, Example()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  v1::CalibrationSettings proto;
  proto.mutable_selector()->mutable_snapkv()->set_kernel(4);
  EXPECT_THAT(message(proto), HasSubstr("settings.selector.snapkv.kernel is 4"));
  proto.Clear();
  proto.mutable_size_allocator()->mutable_ripple()->set_r(0);
  EXPECT_THAT(message(proto), HasSubstr("settings.size_allocator.ripple.r is 0"));
  proto.Clear();
  proto.set_size_key_type(static_cast<v1::KvType>(99));
  EXPECT_THAT(message(proto), HasSubstr("settings.size_key_type is 99"));
  proto.set_size_key_type(v1::KV_TYPE_INT8);
  proto.set_size_chooses_types(true);
  EXPECT_THAT(message(proto), HasSubstr("settings.size_chooses_types is true beside"));
}

class RequestedSettingsTest : public testing::Test {
 protected:
  RequestedSettingsTest() { defaults_.context_length = 8192; }

  CalibrationSettings Requested() {
    const auto settings = RequestedSettings(proto_, defaults_);
    EXPECT_TRUE(settings.ok()) << settings.status();
    return settings.ok() ? *settings : CalibrationSettings();
  }

  SettingsDefaults defaults_;
  v1::CalibrationSettings proto_;
};

TEST_F(RequestedSettingsTest, DamageFollowsFromItsExamples) {
  CalibrationSettings off;
  CalibrationSettings on;
  on.damage_examples = 8;
  on.damage_retentions = on.DefaultDamageRetentions();
  on.damage_storage = true;
  const auto requested = [&](const CalibrationSettings& configured) {
    defaults_.configured = configured;
    return Requested();
  };
  EXPECT_EQ(requested(off), off);
  EXPECT_EQ(requested(on), on);
  proto_.set_damage_examples(0);
  EXPECT_EQ(requested(on), off);
  proto_.set_damage_examples(8);
  EXPECT_EQ(requested(off), on);
  // Those that the request's own prefix allows, also where the server's would not fit it.
  proto_.set_prefix_tokens(256);
  EXPECT_EQ(requested(on).damage_retentions, (std::vector<double>{0.2, 0.4, 0.7}));
  proto_.add_damage_retentions(0.5);
  EXPECT_EQ(requested(off).damage_retentions, std::vector<double>{0.5});
  EXPECT_TRUE(requested(off).damage_storage);
  proto_.set_damage_storage(false);
  EXPECT_FALSE(requested(on).damage_storage);
  // What makes no sense is left to be refused.
  proto_.set_damage_examples(0);
  EXPECT_EQ(requested(on).Validate(8192).code(), absl::StatusCode::kInvalidArgument);
  proto_ = SettingsToProto(on);
  EXPECT_EQ(requested(off), on);
}

TEST_F(RequestedSettingsTest, TheSelectorIsTheServersWhereRowsAreChosen) {
  defaults_.plan.selector = H2o{.window = 100};
  EXPECT_EQ(Requested().selector, SelectorSpec());
  proto_.set_damage_examples(3);
  EXPECT_EQ(Requested().selector, defaults_.plan.selector);
  EXPECT_EQ(Requested().damage_retentions, (std::vector<double>{0.2, 0.4, 0.7}));
  proto_.mutable_selector()->mutable_h2o()->set_window(8);
  defaults_.parameters.selectors.h2o.queries = 33;
  EXPECT_EQ(Requested().selector, SelectorSpec(H2o{.window = 8, .queries = 33}));
  EXPECT_EQ(Requested().damage_retentions.front(), 0.04);
  // Nothing that it would choose.
  proto_.set_damage_examples(0);
  EXPECT_EQ(Requested().Validate(8192).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(RequestedSettingsTest, SizesAreThoseOfTheServersPlan) {
  defaults_.plan.allocator = SqrtAllocator{};
  defaults_.plan.kv_types = KvType::kInt8;
  defaults_.context_length = 3000;
  proto_.set_size_examples(4);
  const CalibrationSettings settings = Requested();
  EXPECT_TRUE(settings.Validate(3000).ok()) << settings.Validate(3000);
  EXPECT_EQ(settings.sizes.examples, 4);
  EXPECT_EQ(settings.sizes.prompt_tokens, (std::vector<int64_t>{1024, 2048}));
  EXPECT_EQ(settings.sizes.retentions, settings.DefaultSizeRetentions());
  EXPECT_EQ(settings.sizes.allocator, defaults_.plan.allocator);
  EXPECT_EQ(settings.sizes.kv_types, KvTypes(KvType::kInt8));
  // The same where the server is configured so, and none where the request wants none.
  defaults_.configured = settings;
  proto_.Clear();
  EXPECT_EQ(Requested(), settings);
  proto_.set_size_examples(0);
  EXPECT_EQ(Requested(), CalibrationSettings());
  // Its own, whatever the server's.
  proto_ = SettingsToProto(Sizes());
  EXPECT_EQ(Requested(), Sizes());
}

TEST_F(RequestedSettingsTest, TypesAreTheServersUnlessNamed) {
  proto_.set_size_examples(4);
  proto_.set_damage_examples(1);
  defaults_.plan.allocator = DamageCurvesAllocator{};
  defaults_.plan.choose_types = true;
  EXPECT_EQ(Requested().sizes.kv_types, std::nullopt);
  proto_.set_size_value_type(v1::KV_TYPE_INT4);
  EXPECT_EQ(Requested().sizes.kv_types, KvTypes(KvType::kBf16, KvType::kInt4));
  proto_.clear_size_value_type();
  proto_.set_size_chooses_types(false);
  EXPECT_EQ(Requested().sizes.kv_types, KvTypes(KvType::kBf16));
  proto_.clear_size_chooses_types();
  proto_.mutable_size_allocator()->mutable_uniform();  // chooses none
  EXPECT_EQ(Requested().sizes.kv_types, KvTypes(KvType::kBf16));
  defaults_.plan.choose_types = false;
  proto_.mutable_size_allocator()->mutable_damage_curves();
  EXPECT_EQ(Requested().sizes.kv_types, KvTypes(KvType::kBf16));
  proto_.set_size_chooses_types(true);
  EXPECT_EQ(Requested().sizes.kv_types, std::nullopt);
  EXPECT_TRUE(Requested().Validate(8192).ok()) << Requested().Validate(8192);
}

}  // namespace
}  // namespace ripplekv
