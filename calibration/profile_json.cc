#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "calibration/field_reader.h"
#include "calibration/plan_fields.h"
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

// A parameter of a selector or an allocator.
struct WriteField {
  Json& object;

  void operator()(const char* name, const std::vector<double>& values) const {
    object[name] = ToJson(values);
  }
  void operator()(const char* name, Pooling value) const { object[name] = PoolingName(value); }
  void operator()(const char* name, SignalMap value) const { object[name] = SignalMapName(value); }
  void operator()(const char* name, double value) const { object[name] = value + 0.0; }
  template <typename T>
  void operator()(const char* name, const T& value) const {
    object[name] = value;
  }
};

template <typename Variant>
Json ToJson(const std::string& name, const Variant& variant) {
  Json object = {{"name", name}};
  std::visit([&](const auto& one) { VisitFields(one, WriteField{object}); }, variant);
  return object;
}

Json ToJson(KvTypes types) { return Json::array({KvTypeName(types.k), KvTypeName(types.v)}); }

Json ToJson(const SizeSettings& sizes) {
  if (sizes.examples == 0) return nullptr;
  Json document;
  document["examples"] = sizes.examples;
  document["prompt_tokens"] = sizes.prompt_tokens;
  document["retentions"] = ToJson(sizes.retentions);
  document["allocator"] = ToJson(AllocatorName(sizes.allocator), sizes.allocator);
  document["kv_types"] = nullptr;  // the plan chooses them
  if (sizes.kv_types.has_value()) document["kv_types"] = ToJson(*sizes.kv_types);
  return document;
}

Json ToJson(const ProfileSizes& sizes) {
  if (sizes.mean_kl.empty()) return nullptr;
  return {{"mean_kl", ToJson(sizes.mean_kl)}, {"mean_kl_error", ToJson(sizes.mean_kl_error)}};
}

Json ToJson(const ProfileDamage& damage) {
  const DamageTable& table = damage.table;
  if (table.empty()) return nullptr;
  Json document;
  document["rows"] = ToJson(table.rows);
  document["rows_error"] = ToJson(damage.rows_error);
  document["storage_types"] = Json::array();
  for (const KvTypes& types : table.types) {
    document["storage_types"].push_back(ToJson(types));
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

absl::StatusOr<CalibrationSettings> ReadSettings(const Json& object) {
  if (!object.is_object()) return absl::DataLossError("settings is not an object");
  CalibrationSettings settings;
  FieldReader reader(object, "settings.");
  settings.examples = reader.Int("examples");
  settings.prefix_tokens = reader.Int("prefix_tokens");
  settings.window_tokens = reader.Int("window_tokens");
  settings.eta = reader.Double("eta");
  settings.sinks = reader.Int("sinks");
  settings.recent = reader.Int("recent");
  settings.seed = reader.Uint("seed");
  settings.damage_examples = reader.Int("damage_examples");
  settings.damage_retentions = reader.Doubles("damage_retentions");
  settings.damage_storage = reader.Bool("damage_storage");
  const Json* const selector = reader.Find("selector");
  if (selector != nullptr && !selector->is_null()) {
    settings.selector = reader.Named<SelectorSpec>("selector", SelectorName);
  }
  const Json* const sizes = reader.Find("sizes");
  if (sizes != nullptr && !sizes->is_null()) {
    if (!sizes->is_object()) return absl::DataLossError("settings.sizes is not an object");
    FieldReader of_sizes(*sizes, "settings.sizes.");
    settings.sizes.examples = of_sizes.Int("examples");
    settings.sizes.prompt_tokens = of_sizes.Int64s("prompt_tokens");
    settings.sizes.retentions = of_sizes.Doubles("retentions");
    settings.sizes.allocator = of_sizes.Named<Allocator>("allocator", AllocatorName);
    settings.sizes.kv_types = of_sizes.Types("kv_types");
    reader.Take(of_sizes);
  }
  if (!reader.status().ok()) return reader.status();
  return settings;
}

absl::Status ReadSizes(const Json& object, ProfileSizes& sizes) {
  if (object.is_null()) return absl::OkStatus();
  if (!object.is_object()) return absl::DataLossError("sizes is not an object");
  FieldReader reader(object, "sizes.");
  sizes.mean_kl = reader.DoublesTable("mean_kl");
  sizes.mean_kl_error = reader.DoublesTable("mean_kl_error");
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
      {"selector", nullptr},
      {"sizes", ToJson(settings.sizes)},
  };
  if (settings.selects()) {
    document["settings"]["selector"] = ToJson(SelectorName(settings.selector), settings.selector);
  }
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
  document["sizes"] = ToJson(profile.sizes);
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
  const Json* sizes = reader.Find("sizes");
  const std::string content_digest = reader.Text("content_digest");
  const Json* settings = reader.Find("settings");
  if (!reader.status().ok()) return reader.status();
  absl::StatusOr<CalibrationSettings> read = ReadSettings(*settings);
  if (!read.ok()) return read.status();
  profile.key.settings = *std::move(read);
  if (absl::Status s = ReadSizes(*sizes, profile.sizes); !s.ok()) return s;
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
