#include "calibration/profile.h"

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/calibration/example_profile.h"

namespace ripplekv {
namespace {

using ::testing::HasSubstr;

// The file's form, and the digests as hashlib.sha256 over the documented encoding gives them.
constexpr char kExampleFile[] = R"({
  "ripplekv_profile": 4,
  "id": "d92faa7a875f4db2455f858d0dcf71a2ced0529a1365f508f1704a59d730831d",
  "model_fingerprint": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
  "model_name": "Tiny",
  "compute_type": "bf16",
  "settings": {
    "examples": 24,
    "prefix_tokens": 1024,
    "window_tokens": 64,
    "eta": 0.5,
    "sinks": 4,
    "recent": 32,
    "seed": 0,
    "damage_examples": 0,
    "damage_retentions": [],
    "damage_storage": false,
    "selector": null,
    "sizes": null
  },
  "corpus_name": "default",
  "corpus_digest": "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
  "layers": 3,
  "examples_computed": 24,
  "sensitivity": [
    0.001,
    0.0052,
    0.0125
  ],
  "standard_error": [
    0.0001,
    0.0002,
    1e-300
  ],
  "split_half_spearman": 0.5,
  "local_response": [
    0.25,
    0.125,
    0.0
  ],
  "local_response_error": [
    0.01,
    0.02,
    0.03
  ],
  "damage": null,
  "sizes": null,
  "software_version": "0.1.0",
  "content_digest": "b58f4b68d10b4cff02ad784fcd95b8044a00029ce1f4bea3f7d8ded95b3dd110"
}
)";

std::string Edited(const char* from, const char* to) {
  std::string edited = absl::StrReplaceAll(kExampleFile, {{from, to}});
  EXPECT_NE(edited, kExampleFile) << from;
  return edited;
}

std::string ParseError(const std::string& json) {
  const absl::Status status = ParseProfile(json).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << json;
  return std::string(status.message());
}

TEST(ProfileTest, FileHasThisForm) {
  EXPECT_EQ(*SerializeProfile(ExampleProfile()), kExampleFile);
  EXPECT_EQ(*ParseProfile(kExampleFile), ExampleProfile());
}

// The digests again as hashlib.sha256 gives them.
TEST(ProfileTest, SizesHaveThisForm) {
  const Profile profile = ExampleSizeProfile();
  const std::string json = *SerializeProfile(profile);
  const auto read = ParseProfile(json);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, profile);
  EXPECT_EQ(profile.id(), "99f975b87359b4e6a0d57fe8783e549167162a34157921be5274eeb1e07e280c");
  EXPECT_EQ(ProfileContentDigest(profile),
            "fa8a156c0ae0909e73cfa5396e7fb9fab1629d5de49bac6390e58d10c8bf14de");
  EXPECT_THAT(json, HasSubstr(R"("selector": {
      "name": "recent_attention",
      "window": 16,
      "queries": 64,
      "kernel": 5,
      "pooling": "mean"
    },
    "sizes": {
      "examples": 2,
      "prompt_tokens": [
        512,
        1024
      ],
      "retentions": [
        0.1,
        1.0
      ],
      "allocator": {
        "name": "shuffled_ripple",
        "r": 3.0,
        "gamma": 16.0,
        "map": "log",
        "seed": 7
      },
      "kv_types": [
        "int8",
        "int4"
      ]
    }
  },)"));
  EXPECT_THAT(json, HasSubstr(R"("sizes": {
    "mean_kl": [
      [
        0.5,
        0.01
      ],)"));
  const auto error = [&](const char* from, const char* to) {
    const std::string edited = absl::StrReplaceAll(json, {{from, to}});
    EXPECT_NE(edited, json) << from;
    return ParseError(edited);
  };
  EXPECT_THAT(error("recent_attention", "recent"),
              HasSubstr("settings.selector.name is not one that there is"));
  EXPECT_THAT(error("\"mean\"", "\"median\""),
              HasSubstr("settings.selector.pooling is not max, mean or none"));
  EXPECT_THAT(error("\"log\"", "\"ln\""),
              HasSubstr("settings.sizes.allocator.map is not minmax, log or rank"));
  EXPECT_THAT(error("\"queries\": 64", "\"queries\": 0"), HasSubstr("queries is 0"));
  EXPECT_THAT(error("\"int4\"", "\"int3\""), HasSubstr("settings.sizes.kv_types is not two types"));
  EXPECT_THAT(error("        512,", "        0.5,"),
              HasSubstr("settings.sizes.prompt_tokens holds something other than integers"));
  EXPECT_THAT(error("\"mean_kl_error\"", "\"errors\""),
              HasSubstr("sizes.mean_kl_error is missing"));
}

// Every selector and allocator with parameters that are not the defaults.
TEST(ProfileTest, AllSelectorsAndAllocatorsReadBack) {
  const RippleAllocator ripple{.r = 2, .gamma = 3, .map = SignalMap::kRank};
  const std::vector<SelectorSpec> selectors = {SnapKv{8, 3, Pooling::kNone},
                                               H2o{8, 9, true},
                                               RecentAttention{8, 9, 3},
                                               MixedAttention{{8, 3, Pooling::kMean}, 9, 0.25},
                                               StreamingLlm{8},
                                               RandomPositions{8, uint64_t{1} << 63}};
  const std::vector<Allocator> allocators = {ripple,
                                             UniformAllocator{},
                                             SqrtAllocator{},
                                             InverseRippleAllocator{ripple},
                                             ShuffledRippleAllocator{ripple, 9},
                                             IsolatedDamageAllocator{ripple, 0.25},
                                             LocalResponseAllocator{ripple},
                                             PyramidAllocator{9},
                                             MultipliersAllocator{{1, 0.5, 2}},
                                             DamageCurvesAllocator{0.5}};
  EXPECT_EQ(selectors.size(), std::variant_size_v<SelectorSpec>);
  EXPECT_EQ(allocators.size() + 1, std::variant_size_v<Allocator>);  // not positions
  std::set<std::string> ids;
  for (const SelectorSpec& selector : selectors) {
    for (const Allocator& allocator : allocators) {
      Profile profile = ExampleDamageProfile();
      profile.key.settings.selector = selector;
      profile.key.settings.sizes = ExampleSizeProfile().key.settings.sizes;
      profile.key.settings.sizes.allocator = allocator;
      profile.sizes = ExampleSizeProfile().sizes;
      if (std::holds_alternative<DamageCurvesAllocator>(allocator)) {
        profile.key.settings.sizes.kv_types.reset();
      }
      const auto json = SerializeProfile(profile);
      ASSERT_TRUE(json.ok()) << json.status();
      const auto read = ParseProfile(*json);
      ASSERT_TRUE(read.ok()) << read.status() << *json;
      EXPECT_EQ(*read, profile);
      ids.insert(profile.id());
    }
  }
  EXPECT_EQ(ids.size(), selectors.size() * allocators.size());
}

TEST(ProfileTest, SizesThatTheSettingsDoNotAskForAreRefused) {
  const auto message = [](auto change) {
    Profile profile = ExampleSizeProfile();
    change(profile);
    const absl::Status status = ValidateProfile(profile);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message([](Profile& p) { p.sizes = {}; }),
              HasSubstr("sizes.mean_kl is of 0 prompt lengths: must be of 2"));
  EXPECT_THAT(message([](Profile& p) { p.sizes.mean_kl[1].push_back(0); }),
              HasSubstr("sizes.mean_kl[1] is of length 3: must have 2 values"));
  EXPECT_THAT(message([](Profile& p) { p.sizes.mean_kl[1][0] = -1; }),
              HasSubstr("sizes.mean_kl[1][0] is -1"));
  EXPECT_THAT(message([](Profile& p) { p.sizes.mean_kl_error.clear(); }),
              HasSubstr("sizes.mean_kl_error is of 0 prompt lengths"));
  EXPECT_THAT(message([](Profile& p) { p.key.settings.sizes.examples = 1; }),
              HasSubstr("sizes.mean_kl_error is of 2 prompt lengths: must be of 0"));
  EXPECT_THAT(message([](Profile& p) { p.key.settings.sizes = {}; }),
              HasSubstr("selector is recent_attention: must be absent"));
}

TEST(ProfileTest, IdDependsOnEachFieldOfTheKeyAndOnNothingElse) {
  const std::string id = ExampleProfile().id();
  std::vector<Profile> same(3, ExampleProfile());
  same[0].model_name = "Other";
  same[1].sensitivity[0] = 7;
  same[2].software_version = "9";
  for (const Profile& profile : same) EXPECT_EQ(profile.id(), id);

  std::vector<ProfileKey> keys(24, ExampleProfile().key);
  keys[1].model_fingerprint[63] = '0';
  keys[2].compute_type = "fp32";
  keys[3].settings.examples = 25;
  keys[4].settings.prefix_tokens = 1025;
  keys[5].settings.window_tokens = 65;
  keys[6].settings.eta = std::nextafter(0.5, 1.0);
  keys[7].settings.sinks = 5;
  keys[8].settings.recent = 33;
  keys[9].settings.seed = uint64_t{1} << 63;
  keys[10].corpus_digest[0] = '0';
  keys[11].settings.damage_examples = 1;
  keys[12].settings.damage_retentions = {0.5};
  keys[13].settings.damage_storage = true;
  keys[14].settings.damage_retentions = {0.5};
  keys[14].settings.selector = SnapKv{.kernel = 5};
  for (size_t i = 15; i < keys.size(); ++i) keys[i] = ExampleSizeProfile().key;
  keys[16].settings.sizes.examples = 3;
  keys[17].settings.sizes.prompt_tokens = {512};
  keys[18].settings.sizes.retentions[0] = 0.2;
  keys[19].settings.sizes.allocator = UniformAllocator{};
  keys[20].settings.sizes.allocator =
      ShuffledRippleAllocator{{.r = 3, .gamma = 16, .map = SignalMap::kLog}, 8};
  keys[21].settings.sizes.kv_types->v = KvType::kInt8;
  keys[22].settings.sizes.kv_types.reset();
  keys[23].settings.selector = RecentAttention{.window = 17, .queries = 64, .kernel = 5};
  for (size_t a = 0; a < keys.size(); ++a) {
    for (size_t b = 0; b < a; ++b) EXPECT_NE(ProfileId(keys[a]), ProfileId(keys[b]));
  }
}

TEST(ProfileTest, ContentDigestCoversEveryField) {
  const std::string digest = ProfileContentDigest(ExampleProfile());
  std::vector<Profile> others(21, ExampleProfile());
  others[0].key.settings.seed = 1;
  others[1].model_name = "Tiny2";
  others[2].corpus_name = "x";
  others[3].software_version = "x";
  others[4].layers = 4;
  others[5].examples_computed = 23;
  others[6].sensitivity[2] = std::nextafter(0.0125, 1);
  others[7].standard_error[2] = 2e-300;
  others[8].split_half_spearman.reset();
  others[9].split_half_spearman = -0.5;
  others[10].local_response[2] = 5e-324;
  others[11].local_response_error[0] = 0;
  others[12].damage.table.rows = {{1}};
  others[13].damage.rows_error = {{1}};
  others[14].damage.table.storage = {{1}};
  others[15].damage.storage_error = {{1}};
  others[16].damage.sensitivity = RankCorrelation{0, -1, 1};
  others[17].damage.layer_index = RankCorrelation{0, -1, 1};
  others[18].damage.local_response = RankCorrelation{0, -1, 1};
  others[19].sizes.mean_kl = {{1}};
  others[20].sizes.mean_kl_error = {{1}};
  for (const Profile& other : others) EXPECT_NE(ProfileContentDigest(other), digest);
}

TEST(ProfileTest, RandomProfilesReadBackToTheSameBits) {
  std::mt19937_64 random(8);
  const auto any_double = [&] {  // any finite one that is not negative, subnormals too
    double value = NAN;
    while (!std::isfinite(value)) value = std::bit_cast<double>(random() >> 1);
    return value;
  };
  for (int i = 0; i < 2000; ++i) {
    Profile profile = ExampleProfile(random());
    profile.layers = static_cast<int>(1 + random() % 20);
    profile.examples_computed = static_cast<int>(1 + random() % 24);
    profile.sensitivity.resize(profile.layers);
    for (double& s : profile.sensitivity) s = any_double();
    profile.standard_error.assign(profile.examples_computed < 2 ? 0 : profile.layers, any_double());
    profile.local_response.assign(profile.layers, any_double());
    profile.local_response_error = profile.standard_error;
    if (random() % 2 == 0) {
      const ProfileDamage example = ExampleDamageProfile().damage;
      profile.key.settings.damage_examples = static_cast<int>(1 + random() % 3);
      profile.key.settings.damage_retentions = example.table.retentions;
      profile.key.settings.damage_storage = random() % 2 == 0;
      const bool errors = profile.key.settings.damage_examples > 1;
      const auto table = [&](size_t columns, bool present) {
        std::vector<std::vector<double>> values(present ? profile.layers : 0);
        for (auto& row : values) row.assign(columns, any_double());
        return values;
      };
      profile.damage.table.prompt_tokens = profile.key.settings.prefix_tokens;
      profile.damage.table.retentions = example.table.retentions;
      profile.damage.table.rows = table(2, true);
      profile.damage.rows_error = table(2, errors);
      if (profile.key.settings.damage_storage) {
        profile.damage.table.types = example.table.types;
        profile.damage.table.storage = table(3, true);
        profile.damage.storage_error = table(3, errors);
      }
      const double at = std::cos(any_double());
      profile.damage.layer_index = RankCorrelation{at, -std::abs(at), 1};
    }
    profile.split_half_spearman.reset();
    if (random() % 2 == 0) profile.split_half_spearman = std::cos(any_double());
    profile.key.settings.eta = std::ldexp(static_cast<double>(random() >> 11), -53);
    profile.model_name = std::string("\"\\\n\x01/\xc3\xa9") + std::to_string(random());
    const std::string json = *SerializeProfile(profile);
    const auto read = ParseProfile(json);
    ASSERT_TRUE(read.ok()) << read.status() << json;
    ASSERT_EQ(*read, profile);
    ASSERT_EQ(*SerializeProfile(*read), json);
  }
}

TEST(ProfileTest, NegativeZeroIsWrittenAsZero) {
  Profile profile = ExampleProfile();
  profile.key.settings.eta = 0.0;
  profile.sensitivity = {0, 0, 0};
  Profile negative = profile;
  negative.key.settings.eta = -0.0;
  negative.sensitivity = {-0.0, 0, -0.0};
  EXPECT_EQ(*SerializeProfile(negative), *SerializeProfile(profile));
}

TEST(ProfileTest, DamageReadsBackAndHasThisForm) {
  const Profile profile = ExampleDamageProfile();
  const std::string json = *SerializeProfile(profile);
  const auto read = ParseProfile(json);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, profile);
  EXPECT_THAT(json, HasSubstr(R"("damage_retentions": [
      0.1,
      0.4
    ],
    "damage_storage": true)"));
  EXPECT_THAT(json, HasSubstr(R"("storage_types": [
      [
        "int8",
        "int8"
      ],
      [
        "int4",
        "int4"
      ],
      [
        "int8",
        "int4"
      ]
    ],)"));
  EXPECT_THAT(json, HasSubstr(R"("compared_retention": 0.1,
    "sensitivity": {
      "spearman": 0.5,
      "low": -0.5,
      "high": 1.0
    },
    "layer_index": null,)"));
  const auto error = [&](const char* from, const char* to) {
    const std::string edited = absl::StrReplaceAll(json, {{from, to}});
    EXPECT_NE(edited, json) << from;
    return ParseError(edited);
  };
  EXPECT_THAT(error("\"int8\"", "\"int4\""), HasSubstr("the text was changed"));
  EXPECT_THAT(error("\"compared_retention\": 0.1", "\"compared_retention\": 0.4"),
              HasSubstr("the text was changed"));
  EXPECT_THAT(error("\"high\": 1.0", "\"high\": 2.0"),
              HasSubstr("damage.sensitivity is 2: must be between -1 and 1"));
  EXPECT_THAT(error("\"high\": 1.0", "\"high\": \"x\""),
              HasSubstr("damage.sensitivity.high is not a number"));
  EXPECT_THAT(error("\"rows_error\"", "\"rows_errors\""),
              HasSubstr("damage.rows_error is missing"));
  EXPECT_THAT(error("\"damage_storage\": true", "\"damage_storage\": 1"),
              HasSubstr("settings.damage_storage is not true or false"));
  EXPECT_THAT(error("\"damage_examples\": 2", "\"damage_examples\": 1"),
              HasSubstr("damage.rows_error is of 3 layers: must be of 0"));
}

TEST(ProfileTest, DamageThatTheSettingsDoNotAskForIsRefused) {
  const auto message = [](auto change) {
    Profile profile = ExampleDamageProfile();
    change(profile);
    const absl::Status status = ValidateProfile(profile);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message([](Profile& p) { p.damage = {}; }), HasSubstr("damage.prompt_tokens is 0"));
  EXPECT_THAT(message([](Profile& p) { p.damage.table.retentions[0] = 0.2; }),
              HasSubstr("damage.retentions"));
  EXPECT_THAT(message([](Profile& p) { p.damage.table.types.pop_back(); }),
              HasSubstr("damage.types"));
  EXPECT_THAT(message([](Profile& p) { p.damage.table.rows.pop_back(); }),
              HasSubstr("damage.rows is of 2 layers: must be of 3"));
  EXPECT_THAT(message([](Profile& p) { p.damage.table.rows[1].pop_back(); }),
              HasSubstr("damage.rows[1] is of length 1: must have 2 values"));
  EXPECT_THAT(message([](Profile& p) { p.damage.table.storage[2][1] = -1; }),
              HasSubstr("damage.storage[2][1] is -1"));
  EXPECT_THAT(message([](Profile& p) {
                p.damage.sensitivity->low = 0.75;
                p.damage.sensitivity->high = 0.5;
              }),
              HasSubstr("damage.sensitivity is from 0.75 to 0.5: must not run backwards"));
  EXPECT_THAT(message([](Profile& p) { p.local_response.pop_back(); }),
              HasSubstr("local_response is of length 2"));
  EXPECT_THAT(message([](Profile& p) {
                p = ExampleProfile();
                p.damage.layer_index = RankCorrelation{};
              }),
              HasSubstr("must have no correlations"));
}

ProbeMeasurements Measured() {
  ProbeMeasurements measured;
  // Four examples of three layers; the last two carry damage.
  measured.sensitivity = {{1, 2, 3}, {3, 4, 5}, {9, 1, 1}, {9, 1, 1}};
  measured.local_response = {{3, 2, 1}, {3, 2, 1}, {1, 2, 3}, {1, 2, 3}};
  measured.rows = {{{1, 0.1}, {2, 0.2}, {4, 0.5}}, {{3, 0.1}, {4, 0.4}, {6, 0.5}}};
  measured.storage = {{{1, 2, 3}, {4, 5, 6}, {7, 8, 9}}, {{3, 2, 3}, {4, 5, 6}, {7, 8, 9}}};
  return measured;
}

TEST(ProfileTest, MeasurementsAreSummarised) {
  Profile profile = ExampleDamageProfile();
  profile.key.settings.examples = 4;
  SummariseMeasurements(Measured(), profile);
  EXPECT_TRUE(ValidateProfile(profile).ok()) << ValidateProfile(profile);
  EXPECT_EQ(profile.examples_computed, 4);
  EXPECT_EQ(profile.sensitivity, (std::vector<double>{5.5, 2, 2.5}));
  EXPECT_EQ(profile.local_response, (std::vector<double>{2, 2, 2}));
  EXPECT_EQ(profile.damage.table.rows[1], (std::vector<double>{3, 0.2 / 2 + 0.4 / 2}));
  EXPECT_EQ(profile.damage.rows_error[0], (std::vector<double>{1, 0}));
  EXPECT_EQ(profile.damage.table.storage[0], (std::vector<double>{2, 2, 3}));
  EXPECT_EQ(profile.damage.storage_error[0], (std::vector<double>{1, 0, 0}));
  // The first two examples rank the layers as the damage of the last two does; all four do not.
  EXPECT_EQ(profile.damage.sensitivity, (RankCorrelation{1, 1, 1}));
  EXPECT_EQ(profile.damage.layer_index, (RankCorrelation{1, 1, 1}));
  EXPECT_EQ(profile.damage.local_response, (RankCorrelation{-1, -1, -1}));
}

TEST(ProfileTest, WhereEveryExampleCarriesDamageAllServeBothSides) {
  ProbeMeasurements measured = Measured();
  measured.sensitivity.erase(measured.sensitivity.begin(), measured.sensitivity.begin() + 2);
  measured.local_response.resize(2);
  Profile profile = ExampleDamageProfile();
  profile.key.settings.examples = 2;
  SummariseMeasurements(measured, profile);
  EXPECT_TRUE(ValidateProfile(profile).ok()) << ValidateProfile(profile);
  ASSERT_TRUE(profile.damage.sensitivity.has_value());
  EXPECT_LT(profile.damage.sensitivity->spearman, 0);
  EXPECT_EQ(profile.damage.local_response, (RankCorrelation{-1, -1, -1}));
}

TEST(ProfileTest, SizesAreSummarised) {
  ProbeMeasurements measured = Measured();
  measured.rows.clear();
  measured.storage.clear();
  measured.sizes = {{{1, 0}, {4, 2}}, {{3, 0}, {4, 1}}};
  Profile profile = ExampleSizeProfile();
  profile.key.settings.examples = 4;
  SummariseMeasurements(measured, profile);
  EXPECT_TRUE(ValidateProfile(profile).ok()) << ValidateProfile(profile);
  EXPECT_EQ(profile.sizes.mean_kl, (std::vector<std::vector<double>>{{2, 0}, {4, 1.5}}));
  EXPECT_EQ(profile.sizes.mean_kl_error, (std::vector<std::vector<double>>{{1, 0}, {0, 0.5}}));
}

TEST(ProfileTest, StorageAloneIsSummarised) {
  ProbeMeasurements measured = Measured();
  for (auto& example : measured.rows) {
    for (auto& layer : example) layer.clear();
  }
  Profile profile = ExampleDamageProfile();
  profile.key.settings.examples = 4;
  profile.key.settings.damage_retentions.clear();
  SummariseMeasurements(measured, profile);
  EXPECT_TRUE(ValidateProfile(profile).ok()) << ValidateProfile(profile);
  EXPECT_TRUE(profile.damage.table.rows.empty());
  EXPECT_FALSE(profile.damage.sensitivity.has_value());
  EXPECT_EQ(profile.damage.table.storage[0], (std::vector<double>{2, 2, 3}));
  EXPECT_EQ(*ParseProfile(*SerializeProfile(profile)), profile);
}

TEST(ProfileTest, RankingsAreComparedNearTenPercent) {
  const auto compared = [](std::vector<double> retentions) {
    DamageTable table;
    table.retentions = std::move(retentions);
    return ComparedRetention(table);
  };
  EXPECT_EQ(compared({}), std::nullopt);
  EXPECT_EQ(compared({0.04, 0.06, 0.1, 0.2}), 2u);
  EXPECT_EQ(compared({0.3, 0.5}), 0u);
  EXPECT_EQ(compared({0.01, 0.12, 0.2}), 1u);
}

TEST(ProfileTest, EveryTruncationIsRefused) {
  const std::string file = kExampleFile;
  for (size_t length = 0; length < file.size(); ++length) ParseError(file.substr(0, length));
}

TEST(ProfileTest, EveryBitFlipIsRefused) {
  std::string file = kExampleFile;
  const char* const version = &file[file.find("profile\": 4") + 10];
  for (char& byte : file) {
    for (int bit = 0; bit < 8; ++bit) {
      byte = static_cast<char>(byte ^ 1 << bit);
      // Another digit is another format version: refused too, but not as damage.
      const bool digit = &byte == version && byte >= '0' && byte <= '9';
      const absl::Status status = ParseProfile(file).status();
      EXPECT_EQ(status.code(),
                digit ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kDataLoss)
          << file;
      byte = static_cast<char>(byte ^ 1 << bit);
    }
  }
  EXPECT_TRUE(ParseProfile(file).ok());
}

TEST(ProfileTest, RandomGarbageIsRefused) {
  std::mt19937 random(9);
  const std::string file = kExampleFile;
  for (int i = 0; i < 5000; ++i) {
    std::string mutated = file;
    for (size_t n = 1 + random() % 4; n > 0; --n) {
      const size_t at = random() % mutated.size();
      switch (random() % 4) {
        case 0:
          mutated[at] = static_cast<char>(random());
          break;
        case 1:
          mutated.insert(at, 1, "{}[]\",:0e-"[random() % 10]);
          break;
        case 2:
          mutated.erase(at, 1 + random() % 20);
          break;
        default:
          mutated.insert(at, mutated.substr(random() % mutated.size(), random() % 40));
      }
      if (mutated.empty()) mutated.assign(1, 'x');
    }
    if (mutated != file) ParseError(mutated);
  }
  ParseError(std::string(100000, '['));
}

TEST(ProfileTest, ReasonsAreClear) {
  EXPECT_THAT(ParseError(""), HasSubstr("not a JSON object"));
  EXPECT_THAT(ParseError("[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(ParseError("{}"), HasSubstr("no field \"ripplekv_profile\""));
  for (const char* version : {"2", "3", "5"}) {
    const absl::Status other =
        ParseProfile(Edited("profile\": 4", absl::StrCat("profile\": ", version).c_str())).status();
    EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(other.message(),
              absl::StrCat("profile format version ", version, ": this software reads version 4"));
  }
  EXPECT_THAT(ParseError(Edited("profile\": 4", "profile\": \"4\"")), HasSubstr("format version"));
  EXPECT_THAT(ParseError(Edited("  \"layers\": 3,\n", "")), HasSubstr("layers is missing"));
  EXPECT_THAT(ParseError(Edited("\"layers\": 3", "\"layers\": 3.0")),
              HasSubstr("layers is not an integer"));
  EXPECT_THAT(ParseError(Edited("\"layers\": 3", "\"layers\": 4294967299")),
              HasSubstr("layers is out of range"));
  EXPECT_THAT(ParseError(Edited("\"layers\": 3", "\"layers\": 4")),
              HasSubstr("sensitivity is of length 3: must have 4 values"));
  EXPECT_THAT(ParseError(Edited("0.0125", "-0.0125")), HasSubstr("sensitivity[2] is -0.0125"));
  EXPECT_THAT(ParseError(Edited("0.0125", "null")), HasSubstr("sensitivity holds something other"));
  EXPECT_THAT(ParseError(Edited("0.0125", "1e999")), HasSubstr("not a JSON object"));
  EXPECT_THAT(ParseError(Edited("0.0125", "0.0126")), HasSubstr("content_digest does not match"));
  EXPECT_THAT(ParseError(Edited("\"seed\": 0", "\"seed\": 1")), HasSubstr("does not match the"));
  EXPECT_THAT(ParseError(Edited("\"seed\": 0", "\"seed\": -1")), HasSubstr("settings.seed is not"));
  EXPECT_THAT(ParseError(Edited("\"examples\": 24", "\"examples\": 0")),
              HasSubstr("examples is 0: must be between 1 and 4096"));
  EXPECT_THAT(ParseError(Edited("\"seed\": 0,", "\"seed\": 0,\n    \"extra\": 0,")),
              HasSubstr("fields were added"));
  EXPECT_THAT(ParseError(Edited("\"layers\": 3,", "\"layers\": 3,\n  \"layers\": 3,")),
              HasSubstr("fields were added"));
  EXPECT_THAT(ParseError(Edited("0.0125", "1.25e-2")), HasSubstr("the text was changed"));
  EXPECT_THAT(ParseError(std::string(kExampleFile) + " "), HasSubstr("the text was changed"));
}

TEST(ProfileTest, InvalidProfilesAreNotWritten) {
  const auto message = [](auto change) {
    Profile profile = ExampleProfile();
    change(profile);
    const absl::Status status = SerializeProfile(profile).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message([](Profile& p) { p.key.model_fingerprint = "A"; }),
              HasSubstr("model_fingerprint is A: must be 64 lower-case hexadecimal digits"));
  EXPECT_THAT(message([](Profile& p) { p.key.corpus_digest.clear(); }), HasSubstr("corpus_digest"));
  EXPECT_THAT(message([](Profile& p) { p.key.compute_type.clear(); }), HasSubstr("compute_type"));
  EXPECT_THAT(message([](Profile& p) { p.model_name = "\xff"; }), HasSubstr("must be UTF-8"));
  EXPECT_THAT(message([](Profile& p) { p.model_name.assign(1025, 'a'); }), HasSubstr("1025 bytes"));
  EXPECT_THAT(message([](Profile& p) { p.layers = 0; }), HasSubstr("layers is 0"));
  EXPECT_THAT(message([](Profile& p) { p.examples_computed = 25; }),
              HasSubstr("examples_computed is 25: must be between 1 and the examples asked for"));
  EXPECT_THAT(message([](Profile& p) { p.examples_computed = 1; }),
              HasSubstr("standard_error is of length 3: must have 0 values"));
  EXPECT_THAT(message([](Profile& p) { p.sensitivity[1] = NAN; }),
              HasSubstr("sensitivity[1] is nan: must be finite and at least 0"));
  EXPECT_THAT(message([](Profile& p) { p.standard_error[1] = INFINITY; }),
              HasSubstr("standard_error[1] is inf"));
  EXPECT_THAT(message([](Profile& p) { p.split_half_spearman = 1.5; }),
              HasSubstr("split_half_spearman is 1.5: must be between -1 and 1"));
  EXPECT_THAT(message([](Profile& p) { p.key.settings.eta = NAN; }), HasSubstr("eta is nan"));
}

TEST(RunInfoTest, ReadsBackAndRefusesDamage) {
  const RunInfo run{.started_at = "2026-01-02T03:04:05Z",
                    .duration_seconds = 12.75,
                    .host = "calibrator-0",
                    .threads = 2};
  std::string json = SerializeRunInfo(run);
  EXPECT_EQ(*ParseRunInfo(json), run);
  for (size_t length = 0; length < json.size(); ++length) {
    EXPECT_EQ(ParseRunInfo(json.substr(0, length)).status().code(), absl::StatusCode::kDataLoss);
  }
  EXPECT_EQ(ParseRunInfo(kExampleFile).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ParseProfile(json).status().code(), absl::StatusCode::kDataLoss);
  // A host name that is not UTF-8 still gives a readable file.
  RunInfo odd;
  odd.host = "\xff";
  EXPECT_TRUE(ParseRunInfo(SerializeRunInfo(odd)).ok());
}

}  // namespace
}  // namespace ripplekv
