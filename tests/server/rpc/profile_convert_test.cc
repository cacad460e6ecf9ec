#include "server/rpc/profile_convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <iterator>

namespace ripplekv {
namespace {

Profile Example() {
  Profile profile;
  profile.key.model_fingerprint = std::string(64, 'a');
  profile.key.compute_type = "bf16";
  profile.key.settings = {.examples = 5,
                          .prefix_tokens = 100,
                          .window_tokens = 7,
                          .eta = 0.1,
                          .sinks = 3,
                          .recent = 9,
                          .seed = 18446744073709551615u};
  profile.key.corpus_digest = std::string(64, 'b');
  profile.model_name = "A model";
  profile.corpus_name = "default";
  profile.software_version = "0.1.0";
  profile.layers = 3;
  profile.examples_computed = 5;
  // Values that lose bits in fewer than 17 digits or in float.
  profile.sensitivity = {0.1 + 0.2, 1.0 / 3, 5e-324};
  profile.standard_error = {1e-9 / 7, 0, 0.25};
  profile.split_half_spearman = 2.0 / 3;
  profile.local_response = {0.1, 1.0 / 7, 0};
  profile.local_response_error = {0.01, 1.0 / 70, 0};
  return profile;
}

Profile DamageExample() {
  Profile profile = Example();
  profile.key.settings.damage_examples = 2;
  profile.key.settings.damage_retentions = {0.4, 0.7};
  profile.key.settings.damage_storage = true;
  ProfileDamage& damage = profile.damage;
  damage.table.prompt_tokens = 100;
  damage.table.retentions = {0.4, 0.7};
  damage.table.types.assign(std::begin(kDamageTypes), std::end(kDamageTypes));
  damage.table.rows = {{0.1, 0.01}, {1.0 / 3, 0}, {0.3, 0.2}};
  damage.rows_error = {{0.01, 0.001}, {1.0 / 30, 0}, {0.03, 0.02}};
  damage.table.storage = {{0.1, 0.2, 0.3}, {0.4, 0.5, 0.6}, {0.7, 0.8, 0.9}};
  damage.storage_error = {{0, 0.1, 0}, {0.1, 0.2, 0.3}, {0, 0, 0}};
  damage.sensitivity = RankCorrelation{0.1 + 0.2, -1.0 / 3, 1};
  damage.local_response = RankCorrelation{0, 0, 0};
  return profile;
}

RunInfo ExampleRun() {
  return {
      .started_at = "2026-01-02T03:04:05Z", .duration_seconds = 12.75, .host = "h", .threads = 2};
}

TEST(ProfileToProto, ReadsBackToTheSameBytes) {
  const Profile profile = Example();
  v1::Profile proto;
  ASSERT_TRUE(proto.ParseFromString(ProfileToProto(profile, ExampleRun()).SerializeAsString()));
  const auto back = ProfileFromProto(proto);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->profile, profile);
  EXPECT_EQ(*SerializeProfile(back->profile), *SerializeProfile(profile));
  EXPECT_EQ(back->run, ExampleRun());
}

TEST(ProfileToProto, DamageReadsBackToTheSameBytes) {
  Profile one = DamageExample();
  one.key.settings.damage_examples = 1;
  one.damage.rows_error.clear();
  one.damage.storage_error.clear();
  Profile rows = DamageExample();
  rows.key.settings.damage_storage = false;
  rows.damage.table.types.clear();
  rows.damage.table.storage.clear();
  rows.damage.storage_error.clear();
  Profile storage = DamageExample();
  storage.key.settings.damage_retentions.clear();
  storage.damage.table.retentions.clear();
  storage.damage.table.rows.clear();
  storage.damage.rows_error.clear();
  storage.damage.sensitivity.reset();
  storage.damage.local_response.reset();
  for (const Profile& profile : {DamageExample(), one, rows, storage}) {
    v1::Profile proto;
    ASSERT_TRUE(proto.ParseFromString(ProfileToProto(profile, std::nullopt).SerializeAsString()));
    const auto back = ProfileFromProto(proto);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->profile, profile);
    EXPECT_EQ(*SerializeProfile(back->profile), *SerializeProfile(profile));
  }
  const v1::Profile proto = ProfileToProto(DamageExample(), std::nullopt);
  EXPECT_EQ(proto.layers(1).retentions(0).retention(), 0.4);
  EXPECT_EQ(proto.layers(1).retentions(0).damage().mean_kl(), 1.0 / 3);
  EXPECT_EQ(proto.layers(1).retentions(0).damage().standard_error(), 1.0 / 30);
  EXPECT_EQ(proto.layers(2).storage(2).keys(), v1::KV_TYPE_INT8);
  EXPECT_EQ(proto.layers(2).storage(2).values(), v1::KV_TYPE_INT4);
  EXPECT_EQ(proto.layers(2).storage(2).damage().mean_kl(), 0.9);
  EXPECT_EQ(proto.damage_agreement().retention(), 0.4);
  EXPECT_FALSE(proto.damage_agreement().has_layer_index());
}

TEST(ProfileToProto, KeepsWhatIsAbsentAbsent) {
  Profile profile = Example();
  profile.examples_computed = 1;
  profile.standard_error.clear();
  profile.local_response_error.clear();
  profile.split_half_spearman.reset();
  const v1::Profile proto = ProfileToProto(profile, std::nullopt);
  EXPECT_FALSE(proto.layers(0).has_standard_error());
  EXPECT_FALSE(proto.layers(0).has_local_response_error());
  EXPECT_FALSE(proto.has_damage_agreement());
  EXPECT_FALSE(proto.has_split_half_spearman());
  EXPECT_FALSE(proto.has_run());
  const auto back = ProfileFromProto(proto);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->profile, profile);
  EXPECT_FALSE(back->run.has_value());
}

TEST(ProfileFromProto, RefusesAnyChange) {
  const std::vector<std::function<void(v1::Profile&)>> changes = {
      [](v1::Profile& p) { p.set_profile_id(std::string(64, 'c')); },
      [](v1::Profile& p) { p.set_content_digest(std::string(64, 'c')); },
      [](v1::Profile& p) { p.set_model_fingerprint(std::string(64, 'c')); },
      [](v1::Profile& p) { p.set_model_fingerprint("short"); },
      [](v1::Profile& p) { p.set_compute_type(v1::COMPUTE_TYPE_FP32); },
      [](v1::Profile& p) { p.set_compute_type(v1::COMPUTE_TYPE_UNSPECIFIED); },
      [](v1::Profile& p) { p.mutable_settings()->set_seed(1); },
      [](v1::Profile& p) { p.mutable_settings()->clear_eta(); },
      [](v1::Profile& p) { p.set_corpus_digest(std::string(64, 'd')); },
      [](v1::Profile& p) { p.set_model_name("Another"); },
      [](v1::Profile& p) { p.set_corpus_name("other"); },
      [](v1::Profile& p) { p.set_software_version("9"); },
      [](v1::Profile& p) { p.set_examples_measured(4); },
      [](v1::Profile& p) { p.mutable_layers(1)->set_mean_kl(0.5); },
      [](v1::Profile& p) { p.mutable_layers(1)->set_mean_kl(-1); },
      [](v1::Profile& p) { p.mutable_layers(1)->set_layer(2); },
      [](v1::Profile& p) { p.mutable_layers(1)->clear_standard_error(); },
      [](v1::Profile& p) { p.mutable_layers()->RemoveLast(); },
      [](v1::Profile& p) { p.clear_layers(); },
      [](v1::Profile& p) { p.clear_split_half_spearman(); },
      [](v1::Profile& p) { p.mutable_layers(1)->set_local_response(0.5); },
      [](v1::Profile& p) { p.mutable_layers(1)->clear_local_response_error(); },
      [](v1::Profile& p) { p.mutable_settings()->set_damage_examples(1); },
      [](v1::Profile& p) { p.mutable_settings()->add_damage_retentions(0.8); },
      [](v1::Profile& p) { p.mutable_settings()->set_damage_storage(false); },
      [](v1::Profile& p) { p.mutable_layers(1)->mutable_retentions()->RemoveLast(); },
      [](v1::Profile& p) { p.mutable_layers(1)->clear_retentions(); },
      [](v1::Profile& p) { p.mutable_layers(1)->add_retentions(); },
      [](v1::Profile& p) { p.mutable_layers(1)->mutable_retentions(0)->set_retention(0.5); },
      [](v1::Profile& p) {
        p.mutable_layers(1)->mutable_retentions(0)->mutable_damage()->set_mean_kl(0.5);
      },
      [](v1::Profile& p) {
        p.mutable_layers(1)->mutable_retentions(0)->mutable_damage()->clear_standard_error();
      },
      [](v1::Profile& p) { p.mutable_layers(2)->mutable_storage(0)->set_keys(v1::KV_TYPE_INT4); },
      [](v1::Profile& p) { p.mutable_layers(2)->mutable_storage(0)->clear_values(); },
      [](v1::Profile& p) { p.mutable_layers(2)->add_storage(); },
      [](v1::Profile& p) { p.clear_damage_agreement(); },
      [](v1::Profile& p) { p.mutable_damage_agreement()->set_retention(0.7); },
      [](v1::Profile& p) { p.mutable_damage_agreement()->clear_sensitivity(); },
      [](v1::Profile& p) { p.mutable_damage_agreement()->mutable_sensitivity()->set_low(-2); },
      [](v1::Profile& p) { p.mutable_damage_agreement()->mutable_layer_index(); },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    v1::Profile proto = ProfileToProto(DamageExample(), ExampleRun());
    changes[i](proto);
    const auto back = ProfileFromProto(proto);
    EXPECT_EQ(back.status().code(), absl::StatusCode::kDataLoss) << "change " << i;
  }
}

TEST(SettingsFromProto, TakesZerosThatAreThere) {
  const CalibrationSettings defaults = Example().key.settings;
  v1::CalibrationSettings proto;
  EXPECT_EQ(SettingsFromProto(proto, defaults), defaults);
  proto.set_eta(0);
  proto.set_sinks(0);
  proto.set_seed(0);
  CalibrationSettings expected = defaults;
  expected.eta = 0;
  expected.sinks = 0;
  expected.seed = 0;
  EXPECT_EQ(SettingsFromProto(proto, defaults), expected);
  EXPECT_EQ(SettingsFromProto(SettingsToProto(defaults), CalibrationSettings()), defaults);
  const CalibrationSettings damage = DamageExample().key.settings;
  EXPECT_EQ(SettingsFromProto(SettingsToProto(damage), CalibrationSettings()), damage);
}

TEST(RequestedSettings, DamageFollowsFromItsExamples) {
  CalibrationSettings off;
  CalibrationSettings on;
  on.damage_examples = 8;
  on.damage_retentions = on.DefaultDamageRetentions();
  on.damage_storage = true;
  v1::CalibrationSettings proto;
  EXPECT_EQ(RequestedSettings(proto, off), off);
  EXPECT_EQ(RequestedSettings(proto, on), on);
  proto.set_damage_examples(0);
  EXPECT_EQ(RequestedSettings(proto, on), off);
  proto.set_damage_examples(8);
  EXPECT_EQ(RequestedSettings(proto, off), on);
  // Those that the request's own prefix allows, also where the server's would not fit it.
  proto.set_prefix_tokens(256);
  EXPECT_EQ(RequestedSettings(proto, on).damage_retentions, (std::vector<double>{0.2, 0.4, 0.7}));
  proto.add_damage_retentions(0.5);
  EXPECT_EQ(RequestedSettings(proto, off).damage_retentions, std::vector<double>{0.5});
  EXPECT_TRUE(RequestedSettings(proto, off).damage_storage);
  proto.set_damage_storage(false);
  EXPECT_FALSE(RequestedSettings(proto, on).damage_storage);
  // What makes no sense is left to be refused.
  proto.set_damage_examples(0);
  EXPECT_EQ(RequestedSettings(proto, on).Validate(8192).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RequestedSettings(SettingsToProto(on), off), on);
}

}  // namespace
}  // namespace ripplekv
