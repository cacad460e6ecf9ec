#include "calibration/profile.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "calibration/canonical_digest.h"
#include "calibration/policy/allocator.h"
#include "model/unicode.h"
#include "nlohmann/json.hpp"

namespace ripplekv {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFormatField[] = "ripplekv_profile";
constexpr char kRunFormatField[] = "ripplekv_calibration_run";
constexpr size_t kMaxTextBytes = 1024;

void AddKey(CanonicalDigest& digest, const ProfileKey& key) {
  digest.AddInt("format", kProfileFormatVersion);
  digest.AddText("model_fingerprint", key.model_fingerprint);
  digest.AddText("compute_type", key.compute_type);
  digest.AddInt("examples", key.settings.examples);
  digest.AddInt("prefix_tokens", key.settings.prefix_tokens);
  digest.AddInt("window_tokens", key.settings.window_tokens);
  digest.AddDouble("eta", key.settings.eta);
  digest.AddInt("sinks", key.settings.sinks);
  digest.AddInt("recent", key.settings.recent);
  digest.AddUint("seed", key.settings.seed);
  digest.AddText("corpus_digest", key.corpus_digest);
}

absl::Status Invalid(absl::string_view field, absl::string_view value, absl::string_view rule) {
  return absl::InvalidArgumentError(absl::StrCat("profile ", field, " is ", value, ": ", rule));
}

absl::Status CheckText(absl::string_view field, const std::string& text, size_t min_bytes) {
  if (text.size() < min_bytes || text.size() > kMaxTextBytes || FindInvalidUtf8(text) != std::string::npos) {
    return Invalid(field, absl::StrCat(text.size(), " bytes long"),
                   absl::StrCat("must be UTF-8 of ", min_bytes, " to ", kMaxTextBytes, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status CheckDigest(absl::string_view field, const std::string& text) {
  if (IsSha256Hex(text)) return absl::OkStatus();
  return Invalid(field, FindInvalidUtf8(text) == std::string::npos ? text.substr(0, 80) : std::string("not text"),
                 "must be 64 lower-case hexadecimal digits");
}

absl::Status CheckValues(absl::string_view field, const std::vector<double>& values, size_t count) {
  if (values.size() != count) {
    return Invalid(field, absl::StrCat("of length ", values.size()),
                   absl::StrCat("must have ", count, " values"));
  }
  for (size_t l = 0; l < count; ++l) {
    if (!std::isfinite(values[l]) || values[l] < 0) {
      return Invalid(absl::StrCat(field, "[", l, "]"), absl::StrCat(values[l]),
                     "must be finite and at least 0");
    }
  }
  return absl::OkStatus();
}

// Reads the fields of one JSON object; remembers the first thing that is wrong.
class FieldReader {
 public:
  FieldReader(const Json& object, std::string where) : where_(std::move(where)), object_(object) {}

  const Json* Find(const char* field) {
    const auto it = object_.find(field);
    if (it != object_.end()) return &*it;
    Fail(field, "is missing");
    return nullptr;
  }

  std::string Text(const char* field) {
    const Json* value = Find(field);
    if (value == nullptr) return "";
    if (!value->is_string()) return Fail(field, "is not a string"), "";
    return value->get<std::string>();
  }

  int Int(const char* field) {
    const Json* value = Find(field);
    if (value == nullptr) return 0;
    if (!value->is_number_integer()) return Fail(field, "is not an integer"), 0;
    const auto wide = value->get<int64_t>();
    if (wide < std::numeric_limits<int>::min() || wide > std::numeric_limits<int>::max()) {
      return Fail(field, "is out of range"), 0;
    }
    return static_cast<int>(wide);
  }

  uint64_t Uint(const char* field) {
    const Json* value = Find(field);
    if (value == nullptr) return 0;
    if (!value->is_number_unsigned()) return Fail(field, "is not an unsigned integer"), 0;
    return value->get<uint64_t>();
  }

  double Double(const char* field) {
    const Json* value = Find(field);
    if (value == nullptr) return 0;
    if (!value->is_number()) return Fail(field, "is not a number"), 0;
    return value->get<double>();
  }

  std::optional<double> OptionalDouble(const char* field) {
    const Json* value = Find(field);
    if (value == nullptr || value->is_null()) return std::nullopt;
    return Double(field);
  }

  std::vector<double> Doubles(const char* field) {
    std::vector<double> values;
    const Json* array = Find(field);
    if (array == nullptr) return values;
    if (!array->is_array()) return Fail(field, "is not a list"), values;
    for (const Json& value : *array) {
      if (!value.is_number()) return Fail(field, "holds something other than numbers"), values;
      values.push_back(value.get<double>());
    }
    return values;
  }

  void Fail(absl::string_view field, absl::string_view what) {
    if (status_.ok()) status_ = absl::DataLossError(absl::StrCat(where_, field, " ", what));
  }

  const absl::Status& status() const { return status_; }

 private:
  std::string where_;
  const Json& object_;
  absl::Status status_;
};

// The document, once its format field says that it is ours.
absl::StatusOr<Json> ParseDocument(std::string_view text, const char* format_field,
                                   const char* what) {
  Json document = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded() || !document.is_object()) {
    return absl::DataLossError(absl::StrCat("not a JSON object, so not a ", what));
  }
  const auto format = document.find(format_field);
  if (format == document.end()) {
    return absl::DataLossError(absl::StrCat("not a ", what, ": no field \"", format_field, "\""));
  }
  if (!format->is_number_integer() || *format != kProfileFormatVersion) {
    return absl::DataLossError(absl::StrCat(what, " format version ", format->dump(-1, ' ', true),
                                            ": this software reads version ",
                                            kProfileFormatVersion));
  }
  return document;
}

}  // namespace

std::string ProfileId(const ProfileKey& key) {
  CanonicalDigest digest("ripplekv profile key");
  AddKey(digest, key);
  return digest.Hex();
}

std::string ProfileContentDigest(const Profile& profile) {
  CanonicalDigest digest("ripplekv profile content");
  AddKey(digest, profile.key);
  digest.AddText("model_name", profile.model_name);
  digest.AddText("corpus_name", profile.corpus_name);
  digest.AddText("software_version", profile.software_version);
  digest.AddInt("layers", profile.layers);
  digest.AddInt("examples_computed", profile.examples_computed);
  digest.AddDoubles("sensitivity", profile.sensitivity);
  digest.AddDoubles("standard_error", profile.standard_error);
  std::vector<double> spearman;
  if (profile.split_half_spearman.has_value()) spearman.push_back(*profile.split_half_spearman);
  digest.AddDoubles("split_half_spearman", spearman);
  return digest.Hex();
}

absl::Status ValidateProfile(const Profile& profile) {
  absl::Status status = CheckDigest("model_fingerprint", profile.key.model_fingerprint);
  status.Update(CheckDigest("corpus_digest", profile.key.corpus_digest));
  status.Update(profile.key.settings.Validate(std::numeric_limits<int64_t>::max()));
  status.Update(CheckText("compute_type", profile.key.compute_type, 1));
  status.Update(CheckText("model_name", profile.model_name, 0));
  status.Update(CheckText("corpus_name", profile.corpus_name, 1));
  status.Update(CheckText("software_version", profile.software_version, 1));
  if (!status.ok()) return status;
  if (profile.layers < 1 || profile.layers > kMaxLayers) {
    return Invalid("layers", absl::StrCat(profile.layers),
                   absl::StrCat("must be between 1 and ", kMaxLayers));
  }
  if (profile.examples_computed < 1 || profile.examples_computed > profile.key.settings.examples) {
    return Invalid("examples_computed", absl::StrCat(profile.examples_computed),
                   absl::StrCat("must be between 1 and the examples asked for, ",
                                profile.key.settings.examples));
  }
  const auto layers = static_cast<size_t>(profile.layers);
  status.Update(CheckValues("sensitivity", profile.sensitivity, layers));
  status.Update(CheckValues("standard_error", profile.standard_error,
                            profile.examples_computed < 2 ? 0 : layers));
  const std::optional<double>& spearman = profile.split_half_spearman;
  if (spearman.has_value() && !(*spearman >= -1 && *spearman <= 1)) {
    status.Update(
        Invalid("split_half_spearman", absl::StrCat(*spearman), "must be between -1 and 1"));
  }
  return status;
}

absl::StatusOr<std::string> SerializeProfile(const Profile& profile) {
  if (absl::Status status = ValidateProfile(profile); !status.ok()) return status;
  const CalibrationSettings& settings = profile.key.settings;
  Json document;
  document[kFormatField] = kProfileFormatVersion;
  document["id"] = profile.id();
  document["model_fingerprint"] = profile.key.model_fingerprint;
  document["model_name"] = profile.model_name;
  document["compute_type"] = profile.key.compute_type;
  document["settings"] = {
      {"examples", settings.examples},
      {"prefix_tokens", settings.prefix_tokens},
      {"window_tokens", settings.window_tokens},
      {"eta", settings.eta + 0.0},  // + 0.0: one form of zero
      {"sinks", settings.sinks},
      {"recent", settings.recent},
      {"seed", settings.seed},
  };
  document["corpus_name"] = profile.corpus_name;
  document["corpus_digest"] = profile.key.corpus_digest;
  document["layers"] = profile.layers;
  document["examples_computed"] = profile.examples_computed;
  document["sensitivity"] = Json::array();
  for (double s : profile.sensitivity) document["sensitivity"].push_back(s + 0.0);
  document["standard_error"] = Json::array();
  for (double e : profile.standard_error) document["standard_error"].push_back(e + 0.0);
  document["split_half_spearman"] = nullptr;
  if (profile.split_half_spearman.has_value()) {
    document["split_half_spearman"] = *profile.split_half_spearman + 0.0;
  }
  document["software_version"] = profile.software_version;
  document["content_digest"] = ProfileContentDigest(profile);
  return document.dump(2) + "\n";
}

absl::StatusOr<Profile> ParseProfile(std::string_view json) {
  absl::StatusOr<Json> document = ParseDocument(json, kFormatField, "profile");
  if (!document.ok()) return document.status();

  Profile profile;
  FieldReader reader(*document, "");
  const std::string id = reader.Text("id");
  profile.key.model_fingerprint = reader.Text("model_fingerprint");
  profile.model_name = reader.Text("model_name");
  profile.key.compute_type = reader.Text("compute_type");
  profile.corpus_name = reader.Text("corpus_name");
  profile.key.corpus_digest = reader.Text("corpus_digest");
  profile.layers = reader.Int("layers");
  profile.examples_computed = reader.Int("examples_computed");
  profile.sensitivity = reader.Doubles("sensitivity");
  profile.standard_error = reader.Doubles("standard_error");
  profile.split_half_spearman = reader.OptionalDouble("split_half_spearman");
  profile.software_version = reader.Text("software_version");
  const std::string content_digest = reader.Text("content_digest");
  const Json* settings = reader.Find("settings");
  if (!reader.status().ok()) return reader.status();
  if (!settings->is_object()) return absl::DataLossError("settings is not an object");

  FieldReader settings_reader(*settings, "settings.");
  profile.key.settings.examples = settings_reader.Int("examples");
  profile.key.settings.prefix_tokens = settings_reader.Int("prefix_tokens");
  profile.key.settings.window_tokens = settings_reader.Int("window_tokens");
  profile.key.settings.eta = settings_reader.Double("eta");
  profile.key.settings.sinks = settings_reader.Int("sinks");
  profile.key.settings.recent = settings_reader.Int("recent");
  profile.key.settings.seed = settings_reader.Uint("seed");
  if (!settings_reader.status().ok()) return settings_reader.status();

  absl::StatusOr<std::string> canonical = SerializeProfile(profile);
  if (!canonical.ok()) return absl::DataLossError(canonical.status().message());
  if (id != profile.id()) {
    return absl::DataLossError(
        absl::StrCat("id ", id, " does not match the profile's key, ", profile.id()));
  }
  if (content_digest != ProfileContentDigest(profile)) {
    return absl::DataLossError("content_digest does not match the values: the file was changed");
  }
  // Catches what the fields do not show: unknown or repeated ones, another number format.
  if (*canonical != json) {
    return absl::DataLossError(
        "not written as this software writes profiles: fields were added "
        "or the text was changed");
  }
  return profile;
}

std::string SerializeRunInfo(const RunInfo& run) {
  Json document;
  document[kRunFormatField] = kProfileFormatVersion;
  document["started_at"] = run.started_at;
  document["duration_seconds"] = std::isfinite(run.duration_seconds) ? run.duration_seconds : 0.0;
  document["host"] = run.host;
  document["threads"] = run.threads;
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::StatusOr<RunInfo> ParseRunInfo(std::string_view json) {
  absl::StatusOr<Json> document = ParseDocument(json, kRunFormatField, "calibration run");
  if (!document.ok()) return document.status();
  FieldReader reader(*document, "");
  RunInfo run;
  run.started_at = reader.Text("started_at");
  run.duration_seconds = reader.Double("duration_seconds");
  run.host = reader.Text("host");
  run.threads = reader.Int("threads");
  if (!reader.status().ok()) return reader.status();
  if (SerializeRunInfo(run) != json) {
    return absl::DataLossError("not written as this software writes calibration runs");
  }
  return run;
}

}  // namespace ripplekv
