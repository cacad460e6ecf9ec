#include "server/rpc/profile_convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

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

TEST(ProfileToProto, KeepsWhatIsAbsentAbsent) {
  Profile profile = Example();
  profile.examples_computed = 1;
  profile.standard_error.clear();
  profile.split_half_spearman.reset();
  const v1::Profile proto = ProfileToProto(profile, std::nullopt);
  EXPECT_FALSE(proto.layers(0).has_standard_error());
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
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    v1::Profile proto = ProfileToProto(Example(), ExampleRun());
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
}

}  // namespace
}  // namespace ripplekv
