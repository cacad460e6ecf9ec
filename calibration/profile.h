#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "calibration/policy/damage_table.h"
#include "calibration/sensitivity_probe.h"
#include "calibration/settings.h"
#include "calibration/statistics.h"

namespace ripplekv {

// Raised whenever a profile's fields, its file or what the probe computes change meaning: profiles
// of another version are not read.
inline constexpr int kProfileFormatVersion = 4;

// What decides a profile's numbers: the same key means the same measurement.
struct ProfileKey {
  std::string model_fingerprint;  // SHA-256 of the checkpoint, 64 lower-case hex digits
  std::string compute_type;       // "fp32" or "bf16"
  CalibrationSettings settings;
  std::string corpus_digest;  // 64 lower-case hex digits

  bool operator==(const ProfileKey&) const = default;
};

// 64 lower-case hex digits. SHA-256 over the format version and the key's fields, in the encoding
// of canonical_digest.h: never over JSON or protobuf text.
std::string ProfileId(const ProfileKey& key);

// What compressing each layer alone costs, and how well the layers' rankings foretell it.
struct ProfileDamage {
  DamageTable table;
  // Of the table's entries, over the examples; empty where the settings' damage_examples is 1, and
  // where the table's are.
  std::vector<std::vector<double>> rows_error;     // [layers][retentions]
  std::vector<std::vector<double>> storage_error;  // [layers][types]
  // The rank correlations (statistics.h) below are with the damage at the measured retention that
  // is nearest to 0.1, the lower of two. Sensitivity and local response are those of the examples
  // before the damage_examples, so that none serves both sides; where every example carries damage,
  // of all (resampled as pairs). Unset where they are not defined.
  std::optional<RankCorrelation> sensitivity;
  std::optional<RankCorrelation> layer_index;
  std::optional<RankCorrelation> local_response;

  bool operator==(const ProfileDamage&) const = default;
};

// The whole model's mean KL by size, compressed as the settings' sizes say.
struct ProfileSizes {
  std::vector<std::vector<double>> mean_kl;  // [prompt lengths][retentions], nats, finite, >= 0
  // Over the examples; empty where the settings' sizes.examples is 1.
  std::vector<std::vector<double>> mean_kl_error;

  bool operator==(const ProfileSizes&) const = default;
};

// A measured sensitivity profile. Holds no time and no host, so that two machines with the same
// build, instruction set and compute type write the same bytes.
struct Profile {
  ProfileKey key;
  std::string model_name;
  std::string corpus_name;
  std::string software_version;
  int layers = 0;                      // 1 to kMaxLayers
  int examples_computed = 0;           // 1 to key.settings.examples
  std::vector<double> sensitivity;     // s_l: mean KL in nats, [layers], finite, >= 0
  std::vector<double> standard_error;  // [layers]; empty when fewer than 2 examples were computed
  std::optional<double> split_half_spearman;  // see statistics.h
  // How far the layer's output moves under the noise, relative to its norm (sensitivity_probe.h),
  // [layers], finite, >= 0.
  std::vector<double> local_response;
  std::vector<double> local_response_error;  // [layers]; empty as standard_error is
  ProfileDamage damage;                      // empty where the settings ask for none
  ProfileSizes sizes;                        // the same

  std::string id() const { return ProfileId(key); }
  bool operator==(const Profile&) const = default;
};

// The place of the retention whose damage the rankings are compared with; unset where none is
// measured.
std::optional<size_t> ComparedRetention(const DamageTable& table);

// Fills in what the measurements give: everything but the key, the texts and `layers`.
void SummariseMeasurements(const ProbeMeasurements& measurements, Profile& profile);

// INVALID_ARGUMENT naming the field, value and range.
absl::Status ValidateProfile(const Profile& profile);

// SHA-256 over all fields, in the encoding of canonical_digest.h: stored in the file, so that
// damage to any value is seen.
std::string ProfileContentDigest(const Profile& profile);

// JSON, fixed key order, doubles in a form that reads back to the same bits, one trailing newline:
// the same profile always gives the same bytes. Errors as of ValidateProfile.
absl::StatusOr<std::string> SerializeProfile(const Profile& profile);

// Strict inverse: DATA_LOSS, saying what is wrong, for anything that SerializeProfile would not
// have written byte for byte. FAILED_PRECONDITION where the file says that it is of another format
// version.
absl::StatusOr<Profile> ParseProfile(std::string_view json);

// How one calibration went: kept beside the profile, outside its digests.
struct RunInfo {
  std::string started_at;  // UTC, RFC 3339
  double duration_seconds = 0;
  std::string host;
  int threads = 0;

  bool operator==(const RunInfo&) const = default;
};

// JSON as above. Parsing answers as ParseProfile.
std::string SerializeRunInfo(const RunInfo& run);
absl::StatusOr<RunInfo> ParseRunInfo(std::string_view json);

}  // namespace ripplekv
