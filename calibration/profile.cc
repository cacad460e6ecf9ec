#include "calibration/profile.h"

#include <cmath>
#include <iterator>
#include <limits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "calibration/canonical_digest.h"
#include "calibration/plan_fields.h"
#include "calibration/policy/allocator.h"
#include "model/unicode.h"

namespace ripplekv {
namespace {

constexpr size_t kMaxTextBytes = 1024;

// A parameter of a selector or an allocator.
struct AddField {
  CanonicalDigest& digest;

  void operator()(std::string_view name, const std::vector<double>& values) const {
    digest.AddDoubles(name, values);
  }
  void operator()(std::string_view name, const std::vector<int64_t>& values) const {
    digest.AddInt(name, static_cast<int64_t>(values.size()));
    for (const int64_t value : values) digest.AddInt(name, value);
  }
  void operator()(std::string_view name, Pooling value) const {
    digest.AddText(name, PoolingName(value));
  }
  void operator()(std::string_view name, SignalMap value) const {
    digest.AddText(name, SignalMapName(value));
  }
  void operator()(std::string_view name, double value) const { digest.AddDouble(name, value); }
  void operator()(std::string_view name, uint64_t value) const { digest.AddUint(name, value); }
  void operator()(std::string_view name, int value) const { digest.AddInt(name, value); }
  void operator()(std::string_view name, bool value) const { digest.AddInt(name, value ? 1 : 0); }
};

void AddSelector(CanonicalDigest& digest, const CalibrationSettings& settings) {
  digest.AddText("selector", settings.selects() ? SelectorName(settings.selector) : "");
  if (!settings.selects()) return;
  std::visit([&](const auto& selector) { VisitFields(selector, AddField{digest}); },
             settings.selector);
}

void AddSizes(CanonicalDigest& digest, const SizeSettings& sizes) {
  digest.AddInt("size_examples", sizes.examples);
  if (sizes.examples == 0) return;
  AddField{digest}("size_prompt_tokens", sizes.prompt_tokens);
  digest.AddDoubles("size_retentions", sizes.retentions);
  digest.AddText("size_allocator", AllocatorName(sizes.allocator));
  std::visit([&](const auto& allocator) { VisitFields(allocator, AddField{digest}); },
             sizes.allocator);
  digest.AddText("size_key_type", sizes.kv_types ? KvTypeName(sizes.kv_types->k) : "");
  digest.AddText("size_value_type", sizes.kv_types ? KvTypeName(sizes.kv_types->v) : "");
}

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
  digest.AddInt("damage_examples", key.settings.damage_examples);
  digest.AddDoubles("damage_retentions", key.settings.damage_retentions);
  digest.AddInt("damage_storage", key.settings.damage_storage ? 1 : 0);
  AddSelector(digest, key.settings);
  AddSizes(digest, key.settings.sizes);
  digest.AddText("corpus_digest", key.corpus_digest);
}

using Table = std::vector<std::vector<double>>;

void AddTable(CanonicalDigest& digest, std::string_view name, const Table& table) {
  std::vector<double> values;
  for (const auto& row : table) values.insert(values.end(), row.begin(), row.end());
  digest.AddDoubles(name, values);
}

void AddCorrelation(CanonicalDigest& digest, std::string_view name,
                    const std::optional<RankCorrelation>& correlation) {
  std::vector<double> values;
  if (correlation.has_value()) {
    values = {correlation->spearman, correlation->low, correlation->high};
  }
  digest.AddDoubles(name, values);
}

absl::Status Invalid(absl::string_view field, absl::string_view value, absl::string_view rule) {
  return absl::InvalidArgumentError(absl::StrCat("profile ", field, " is ", value, ": ", rule));
}

absl::Status CheckText(absl::string_view field, const std::string& text, size_t min_bytes) {
  if (text.size() < min_bytes || text.size() > kMaxTextBytes ||
      FindInvalidUtf8(text) != std::string::npos) {
    return Invalid(field, absl::StrCat(text.size(), " bytes long"),
                   absl::StrCat("must be UTF-8 of ", min_bytes, " to ", kMaxTextBytes, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status CheckDigest(absl::string_view field, const std::string& text) {
  if (IsSha256Hex(text)) return absl::OkStatus();
  return Invalid(field, Excerpt(text), "must be 64 lower-case hexadecimal digits");
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

// [rows][columns], and no rows where there is no column.
absl::Status CheckTable(absl::string_view field, const Table& table, size_t rows, size_t columns,
                        absl::string_view row_name = "layers") {
  if (columns == 0) rows = 0;
  if (table.size() != rows) {
    return Invalid(field, absl::StrCat("of ", table.size(), " ", row_name),
                   absl::StrCat("must be of ", rows));
  }
  for (size_t l = 0; l < rows; ++l) {
    if (absl::Status s = CheckValues(absl::StrCat(field, "[", l, "]"), table[l], columns); !s.ok())
      return s;
  }
  return absl::OkStatus();
}

absl::Status CheckCorrelation(absl::string_view field,
                              const std::optional<RankCorrelation>& correlation) {
  if (!correlation.has_value()) return absl::OkStatus();
  const RankCorrelation& c = *correlation;
  for (const double value : {c.spearman, c.low, c.high}) {
    if (value >= -1 && value <= 1) continue;
    return Invalid(field, absl::StrCat(value), "must be between -1 and 1");
  }
  if (c.low <= c.high) return absl::OkStatus();
  return Invalid(field, absl::StrCat("from ", c.low, " to ", c.high), "must not run backwards");
}

absl::Status CheckDamage(const Profile& profile) {
  const CalibrationSettings& settings = profile.key.settings;
  const ProfileDamage& damage = profile.damage;
  const DamageTable& table = damage.table;
  if (table.prompt_tokens != (settings.damage_examples > 0 ? settings.prefix_tokens : 0)) {
    return Invalid("damage.prompt_tokens", absl::StrCat(table.prompt_tokens),
                   "must be the settings' prefix_tokens where damage is measured, else 0");
  }
  if (table.retentions != settings.damage_retentions) {
    return Invalid("damage.retentions", absl::StrCat("of length ", table.retentions.size()),
                   "must be the settings' damage_retentions");
  }
  const std::vector<KvTypes> types =
      settings.damage_storage
          ? std::vector<KvTypes>(std::begin(kDamageTypes), std::end(kDamageTypes))
          : std::vector<KvTypes>();
  if (table.types != types) {
    return Invalid("damage.types", absl::StrCat("of length ", table.types.size()),
                   "must be those that the settings' damage_storage has measured");
  }
  const auto layers = static_cast<size_t>(profile.layers);
  const bool errors = settings.damage_examples >= 2;
  const size_t retentions = table.retentions.size();
  absl::Status status = CheckTable("damage.rows", table.rows, layers, retentions);
  status.Update(CheckTable("damage.storage", table.storage, layers, types.size()));
  status.Update(
      CheckTable("damage.rows_error", damage.rows_error, layers, errors ? retentions : 0));
  status.Update(
      CheckTable("damage.storage_error", damage.storage_error, layers, errors ? types.size() : 0));
  status.Update(CheckCorrelation("damage.sensitivity", damage.sensitivity));
  status.Update(CheckCorrelation("damage.layer_index", damage.layer_index));
  status.Update(CheckCorrelation("damage.local_response", damage.local_response));
  if (status.ok() && retentions == 0 &&
      (damage.sensitivity.has_value() || damage.layer_index.has_value() ||
       damage.local_response.has_value())) {
    return Invalid("damage", "without retentions", "must have no correlations then");
  }
  return status;
}

absl::Status CheckSizes(const Profile& profile) {
  const SizeSettings& settings = profile.key.settings.sizes;
  const size_t prompts = settings.prompt_tokens.size();
  const size_t retentions = settings.retentions.size();
  absl::Status status =
      CheckTable("sizes.mean_kl", profile.sizes.mean_kl, prompts, retentions, "prompt lengths");
  status.Update(CheckTable("sizes.mean_kl_error", profile.sizes.mean_kl_error, prompts,
                           settings.examples >= 2 ? retentions : 0, "prompt lengths"));
  return status;
}

// The rank correlations with the damage at the compared retention.
void CorrelateDamage(const ProbeMeasurements& measurements, Profile& profile) {
  const std::optional<size_t> place = ComparedRetention(profile.damage.table);
  if (!place.has_value()) return;
  Table damage;
  for (const auto& example : measurements.rows) {
    damage.emplace_back();
    for (const auto& layer : example) damage.back().push_back(layer[*place]);
  }
  const CalibrationSettings& settings = profile.key.settings;
  const bool paired = settings.damage_examples == settings.examples;
  const size_t others =
      static_cast<size_t>(settings.examples - (paired ? 0 : settings.damage_examples));
  const auto correlate = [&](const Table& values) {
    return CorrelateRanks({values.begin(), values.begin() + static_cast<std::ptrdiff_t>(others)},
                          damage, paired);
  };
  profile.damage.sensitivity = correlate(measurements.sensitivity);
  profile.damage.local_response = correlate(measurements.local_response);
  Table index(1);
  for (int l = 0; l < profile.layers; ++l) index[0].push_back(l);
  profile.damage.layer_index = CorrelateRanks(index, damage, false);
}

}  // namespace

std::optional<size_t> ComparedRetention(const DamageTable& table) {
  std::optional<size_t> best;
  const auto distance = [&](size_t i) { return std::abs(table.retentions[i] - 0.1); };
  for (size_t i = 0; i < table.retentions.size(); ++i) {
    if (!best.has_value() || distance(i) < distance(*best)) best = i;
  }
  return best;
}

void SummariseMeasurements(const ProbeMeasurements& measurements, Profile& profile) {
  SensitivityStatistics sensitivity = SummariseSensitivity(measurements.sensitivity);
  SensitivityStatistics response = SummariseSensitivity(measurements.local_response);
  profile.examples_computed = static_cast<int>(measurements.sensitivity.size());
  profile.sensitivity = std::move(sensitivity.mean);
  profile.standard_error = std::move(sensitivity.standard_error);
  profile.split_half_spearman = sensitivity.split_half_spearman;
  profile.local_response = std::move(response.mean);
  profile.local_response_error = std::move(response.standard_error);
  profile.damage = {};
  profile.sizes = {};
  const CalibrationSettings& settings = profile.key.settings;
  if (!measurements.sizes.empty()) {
    TableStatistics sizes = SummariseTables(measurements.sizes);
    profile.sizes.mean_kl = std::move(sizes.mean);
    profile.sizes.mean_kl_error = std::move(sizes.standard_error);
  }
  if (settings.damage_examples == 0) return;
  DamageTable& table = profile.damage.table;
  table.prompt_tokens = settings.prefix_tokens;
  if (!settings.damage_retentions.empty()) {
    TableStatistics rows = SummariseTables(measurements.rows);
    table.retentions = settings.damage_retentions;
    table.rows = std::move(rows.mean);
    profile.damage.rows_error = std::move(rows.standard_error);
    CorrelateDamage(measurements, profile);
  }
  if (settings.damage_storage) {
    TableStatistics storage = SummariseTables(measurements.storage);
    table.types.assign(std::begin(kDamageTypes), std::end(kDamageTypes));
    table.storage = std::move(storage.mean);
    profile.damage.storage_error = std::move(storage.standard_error);
  }
}

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
  digest.AddDoubles("local_response", profile.local_response);
  digest.AddDoubles("local_response_error", profile.local_response_error);
  // Its shape is that of the settings and the layers.
  const ProfileDamage& damage = profile.damage;
  AddTable(digest, "damage.rows", damage.table.rows);
  AddTable(digest, "damage.rows_error", damage.rows_error);
  AddTable(digest, "damage.storage", damage.table.storage);
  AddTable(digest, "damage.storage_error", damage.storage_error);
  AddCorrelation(digest, "damage.sensitivity", damage.sensitivity);
  AddCorrelation(digest, "damage.layer_index", damage.layer_index);
  AddCorrelation(digest, "damage.local_response", damage.local_response);
  AddTable(digest, "sizes.mean_kl", profile.sizes.mean_kl);
  AddTable(digest, "sizes.mean_kl_error", profile.sizes.mean_kl_error);
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
  status.Update(CheckValues("local_response", profile.local_response, layers));
  status.Update(CheckValues("local_response_error", profile.local_response_error,
                            profile.examples_computed < 2 ? 0 : layers));
  status.Update(CheckDamage(profile));
  status.Update(CheckSizes(profile));
  return status;
}

}  // namespace ripplekv
