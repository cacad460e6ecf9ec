#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "calibration/profile.h"
#include "nlohmann/json.hpp"

// The files of profiles and of calibration runs: the second half of profile.h.

namespace ripplekv {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFormatField[] = "ripplekv_profile";
constexpr char kRunFormatField[] = "ripplekv_calibration_run";

using Table = std::vector<std::vector<double>>;

Json ToJson(const std::vector<double>& values) {
  Json list = Json::array();
  for (const double value : values) list.push_back(value + 0.0);  // + 0.0: one form of zero
  return list;
}

Json ToJson(const Table& table) {
  Json rows = Json::array();
  for (const auto& row : table) rows.push_back(ToJson(row));
  return rows;
}

Json ToJson(const std::optional<RankCorrelation>& correlation) {
  if (!correlation.has_value()) return nullptr;
  return {{"spearman", correlation->spearman + 0.0},
          {"low", correlation->low + 0.0},
          {"high", correlation->high + 0.0}};
}

Json ToJson(const ProfileDamage& damage) {
  const DamageTable& table = damage.table;
  if (table.empty()) return nullptr;
  Json document;
  document["rows"] = ToJson(table.rows);
  document["rows_error"] = ToJson(damage.rows_error);
  document["storage_types"] = Json::array();
  for (const KvTypes& types : table.types) {
    document["storage_types"].push_back({KvTypeName(types.k), KvTypeName(types.v)});
  }
  document["storage"] = ToJson(table.storage);
  document["storage_error"] = ToJson(damage.storage_error);
  const std::optional<size_t> compared = ComparedRetention(table);
  document["compared_retention"] = nullptr;
  if (compared.has_value()) document["compared_retention"] = table.retentions[*compared];
  document["sensitivity"] = ToJson(damage.sensitivity);
  document["layer_index"] = ToJson(damage.layer_index);
  document["local_response"] = ToJson(damage.local_response);
  return document;
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

  bool Bool(const char* field) {
    const Json* value = Find(field);
    if (value == nullptr) return false;
    if (!value->is_boolean()) return Fail(field, "is not true or false"), false;
    return value->get<bool>();
  }

  std::vector<double> Doubles(const char* field) {
    const Json* array = Find(field);
    return array == nullptr ? std::vector<double>() : Doubles(field, *array);
  }

  Table DoublesTable(const char* field) {
    Table table;
    const Json* rows = Find(field);
    if (rows == nullptr) return table;
    if (!rows->is_array()) return Fail(field, "is not a list"), table;
    for (const Json& row : *rows) table.push_back(Doubles(field, row));
    return table;
  }

  std::optional<RankCorrelation> Correlation(const char* field) {
    const Json* value = Find(field);
    if (value == nullptr || value->is_null()) return std::nullopt;
    if (!value->is_object()) return Fail(field, "is not an object"), std::nullopt;
    FieldReader reader(*value, absl::StrCat(where_, field, "."));
    const RankCorrelation correlation = {reader.Double("spearman"), reader.Double("low"),
                                         reader.Double("high")};
    if (status_.ok()) status_ = reader.status();
    return correlation;
  }

  void Fail(absl::string_view field, absl::string_view what) {
    if (status_.ok()) status_ = absl::DataLossError(absl::StrCat(where_, field, " ", what));
  }

  const absl::Status& status() const { return status_; }

 private:
  std::vector<double> Doubles(const char* field, const Json& array) {
    std::vector<double> values;
    if (!array.is_array()) return Fail(field, "is not a list"), values;
    for (const Json& value : array) {
      if (!value.is_number()) return Fail(field, "holds something other than numbers"), values;
      values.push_back(value.get<double>());
    }
    return values;
  }

  std::string where_;
  const Json& object_;
  absl::Status status_;
};

// Retentions and types are those of the settings; whether the lists fit them is ValidateProfile's
// business.
absl::Status ReadDamage(const Json& object, const CalibrationSettings& settings,
                        ProfileDamage& damage) {
  if (object.is_null()) return absl::OkStatus();
  if (!object.is_object()) return absl::DataLossError("damage is not an object");
  FieldReader reader(object, "damage.");
  damage.table.prompt_tokens = settings.prefix_tokens;
  damage.table.retentions = settings.damage_retentions;
  if (settings.damage_storage) {
    damage.table.types.assign(std::begin(kDamageTypes), std::end(kDamageTypes));
  }
  damage.table.rows = reader.DoublesTable("rows");
  damage.rows_error = reader.DoublesTable("rows_error");
  damage.table.storage = reader.DoublesTable("storage");
  damage.storage_error = reader.DoublesTable("storage_error");
  damage.sensitivity = reader.Correlation("sensitivity");
  damage.layer_index = reader.Correlation("layer_index");
  damage.local_response = reader.Correlation("local_response");
  return reader.status();
}

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
  if (!format->is_number_integer()) {
    return absl::DataLossError(absl::StrCat(what, " format version ", format->dump(-1, ' ', true),
                                            ": must be an integer"));
  }
  if (*format != kProfileFormatVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, " format version ", format->dump(-1, ' ', true),
                     ": this software reads version ", kProfileFormatVersion));
  }
  return document;
}

}  // namespace

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
      {"eta", settings.eta + 0.0},
      {"sinks", settings.sinks},
      {"recent", settings.recent},
      {"seed", settings.seed},
      {"damage_examples", settings.damage_examples},
      {"damage_retentions", ToJson(settings.damage_retentions)},
      {"damage_storage", settings.damage_storage},
  };
  document["corpus_name"] = profile.corpus_name;
  document["corpus_digest"] = profile.key.corpus_digest;
  document["layers"] = profile.layers;
  document["examples_computed"] = profile.examples_computed;
  document["sensitivity"] = ToJson(profile.sensitivity);
  document["standard_error"] = ToJson(profile.standard_error);
  document["split_half_spearman"] = nullptr;
  if (profile.split_half_spearman.has_value()) {
    document["split_half_spearman"] = *profile.split_half_spearman + 0.0;
  }
  document["local_response"] = ToJson(profile.local_response);
  document["local_response_error"] = ToJson(profile.local_response_error);
  document["damage"] = ToJson(profile.damage);
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
  profile.local_response = reader.Doubles("local_response");
  profile.local_response_error = reader.Doubles("local_response_error");
  profile.software_version = reader.Text("software_version");
  const Json* damage = reader.Find("damage");
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
  profile.key.settings.damage_examples = settings_reader.Int("damage_examples");
  profile.key.settings.damage_retentions = settings_reader.Doubles("damage_retentions");
  profile.key.settings.damage_storage = settings_reader.Bool("damage_storage");
  if (!settings_reader.status().ok()) return settings_reader.status();
  if (absl::Status s = ReadDamage(*damage, profile.key.settings, profile.damage); !s.ok()) return s;

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
