#include "calibration/profile.h"

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/calibration/example_profile.h"

namespace ripplekv {
namespace {

using ::testing::HasSubstr;

// The file's form, and the digests as hashlib.sha256 over the documented encoding gives them.
constexpr char kExampleFile[] = R"({
  "ripplekv_profile": 1,
  "id": "2feaa6029549fb7940647fc68d24d62bc6e3a715dd991f9cac459519d51f81d6",
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
    "seed": 0
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
  "software_version": "0.1.0",
  "content_digest": "4217350ce329aa456b342baaa5a5748f508bdc06a88f848a6a7db3169f219540"
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

TEST(ProfileTest, IdDependsOnEachFieldOfTheKeyAndOnNothingElse) {
  const std::string id = ExampleProfile().id();
  std::vector<Profile> same(3, ExampleProfile());
  same[0].model_name = "Other";
  same[1].sensitivity[0] = 7;
  same[2].software_version = "9";
  for (const Profile& profile : same) EXPECT_EQ(profile.id(), id);

  std::vector<ProfileKey> keys(11, ExampleProfile().key);
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
  for (size_t a = 0; a < keys.size(); ++a) {
    for (size_t b = 0; b < a; ++b) EXPECT_NE(ProfileId(keys[a]), ProfileId(keys[b]));
  }
}

TEST(ProfileTest, ContentDigestCoversEveryField) {
  const std::string digest = ProfileContentDigest(ExampleProfile());
  std::vector<Profile> others(10, ExampleProfile());
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

TEST(ProfileTest, EveryTruncationIsRefused) {
  const std::string file = kExampleFile;
  for (size_t length = 0; length < file.size(); ++length) ParseError(file.substr(0, length));
}

TEST(ProfileTest, EveryBitFlipIsRefused) {
  std::string file = kExampleFile;
  for (char& byte : file) {
    for (int bit = 0; bit < 8; ++bit) {
      byte = static_cast<char>(byte ^ 1 << bit);
      ParseError(file);
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
  EXPECT_THAT(ParseError(Edited("profile\": 1", "profile\": 2")),
              HasSubstr("format version 2: this software reads version 1"));
  EXPECT_THAT(ParseError(Edited("profile\": 1", "profile\": \"1\"")), HasSubstr("format version"));
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
  EXPECT_THAT(ParseError(Edited("\"seed\": 0", "\"seed\": 0,\n    \"extra\": 0")),
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
