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

Profile SizeExample() {
  Profile profile = Example();
  profile.key.settings.selector = H2o{.window = 8, .queries = 20};
  profile.key.settings.sizes = {.examples = 2,
                                .prompt_tokens = {100, 200},
                                .retentions = {0.4, 0.7},
                                .allocator = SqrtAllocator{},
                                .kv_types = KvTypes(KvType::kInt8, KvType::kInt4)};
  profile.sizes.mean_kl = {{0.1, 1.0 / 3}, {0.2, 0}};
  profile.sizes.mean_kl_error = {{0.01, 1.0 / 30}, {0.02, 0}};
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

TEST(ProfileToProto, SizesReadBackToTheSameBytes) {
  Profile one = SizeExample();
  one.key.settings.sizes.examples = 1;
  one.sizes.mean_kl_error.clear();
  for (const Profile& profile : {SizeExample(), one}) {
    v1::Profile proto;
    ASSERT_TRUE(proto.ParseFromString(ProfileToProto(profile, std::nullopt).SerializeAsString()));
    const auto back = ProfileFromProto(proto);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->profile, profile);
    EXPECT_EQ(*SerializeProfile(back->profile), *SerializeProfile(profile));
  }
  const v1::Profile proto = ProfileToProto(SizeExample(), std::nullopt);
  ASSERT_EQ(proto.sizes_size(), 4);
  EXPECT_EQ(proto.sizes(2).prompt_tokens(), 200);
  EXPECT_EQ(proto.sizes(1).retention(), 0.7);
  EXPECT_EQ(proto.sizes(1).damage().mean_kl(), 1.0 / 3);
  EXPECT_EQ(proto.sizes(1).damage().standard_error(), 1.0 / 30);
  EXPECT_EQ(proto.settings().size_value_type(), v1::KV_TYPE_INT4);

  const std::vector<std::function<void(v1::Profile&)>> changes = {
      [](v1::Profile& p) { p.mutable_sizes()->RemoveLast(); },
      [](v1::Profile& p) { p.clear_sizes(); },
      [](v1::Profile& p) { *p.add_sizes() = p.sizes(3); },
      [](v1::Profile& p) { p.mutable_sizes(1)->set_prompt_tokens(200); },
      [](v1::Profile& p) { p.mutable_sizes(1)->set_retention(0.4); },
      [](v1::Profile& p) { p.mutable_sizes(1)->mutable_damage()->set_mean_kl(0.4); },
      [](v1::Profile& p) { p.mutable_sizes(1)->mutable_damage()->clear_standard_error(); },
      [](v1::Profile& p) { p.mutable_sizes(0)->mutable_damage()->clear_standard_error(); },
      [](v1::Profile& p) { p.mutable_settings()->set_size_examples(0); },
      [](v1::Profile& p) { p.mutable_settings()->set_size_prompt_tokens(1, 300); },
      [](v1::Profile& p) { p.mutable_settings()->add_size_retentions(0.9); },
      [](v1::Profile& p) { p.mutable_settings()->mutable_size_allocator()->mutable_uniform(); },
      [](v1::Profile& p) { p.mutable_settings()->set_size_key_type(v1::KV_TYPE_INT4); },
      [](v1::Profile& p) { p.mutable_settings()->clear_size_value_type(); },
      [](v1::Profile& p) { p.mutable_settings()->set_size_chooses_types(true); },
      [](v1::Profile& p) { p.mutable_settings()->clear_selector(); },
      [](v1::Profile& p) { p.mutable_settings()->mutable_selector()->mutable_snapkv(); },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    v1::Profile changed = proto;
    changes[i](changed);
    EXPECT_EQ(ProfileFromProto(changed).status().code(), absl::StatusCode::kDataLoss)
        << "change " << i;
  }
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

}  // namespace
}  // namespace ripplekv
