#include "server/rpc/profile_convert.h"

#include <google/protobuf/util/time_util.h>

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/rpc/kv_type_convert.h"

namespace ripplekv {
namespace {

using google::protobuf::util::TimeUtil;

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("the profile received is not sound: ", what));
}

v1::CalibrationState StateToProto(JobState state) {
  switch (state) {
    case JobState::kRunning:
      return v1::CALIBRATION_STATE_RUNNING;
    case JobState::kSucceeded:
      return v1::CALIBRATION_STATE_SUCCEEDED;
    case JobState::kFailed:
      return v1::CALIBRATION_STATE_FAILED;
    case JobState::kCancelled:
      return v1::CALIBRATION_STATE_CANCELLED;
  }
  return v1::CALIBRATION_STATE_UNSPECIFIED;
}

void SetCorrelation(const std::optional<RankCorrelation>& correlation,
                    v1::RankCorrelation* (v1::DamageAgreement::*field)(),
                    v1::DamageAgreement* agreement) {
  if (!correlation.has_value()) return;
  v1::RankCorrelation* proto = (agreement->*field)();
  proto->set_spearman(correlation->spearman);
  proto->set_low(correlation->low);
  proto->set_high(correlation->high);
}

std::optional<RankCorrelation> CorrelationFromProto(bool present,
                                                    const v1::RankCorrelation& proto) {
  if (!present) return std::nullopt;
  return RankCorrelation{proto.spearman(), proto.low(), proto.high()};
}

// `errors` is empty where there are none.
void SetDamage(double mean_kl, const std::vector<std::vector<double>>& errors, size_t layer,
               size_t column, v1::Damage* proto) {
  proto->set_mean_kl(mean_kl);
  if (!errors.empty()) proto->set_standard_error(errors[layer][column]);
}

void DamageToProto(const ProfileDamage& damage, v1::Profile* profile) {
  const DamageTable& table = damage.table;
  for (size_t l = 0; l < static_cast<size_t>(profile->layers_size()); ++l) {
    v1::LayerSensitivity* layer = profile->mutable_layers(static_cast<int>(l));
    for (size_t i = 0; i < table.retentions.size(); ++i) {
      v1::RetentionDamage* kept = layer->add_retentions();
      kept->set_retention(table.retentions[i]);
      SetDamage(table.rows[l][i], damage.rows_error, l, i, kept->mutable_damage());
    }
    for (size_t i = 0; i < table.types.size(); ++i) {
      v1::StorageDamage* stored = layer->add_storage();
      stored->set_keys(KvTypeToProto(table.types[i].k));
      stored->set_values(KvTypeToProto(table.types[i].v));
      SetDamage(table.storage[l][i], damage.storage_error, l, i, stored->mutable_damage());
    }
  }
  const std::optional<size_t> compared = ComparedRetention(table);
  if (!compared.has_value()) return;
  v1::DamageAgreement* agreement = profile->mutable_damage_agreement();
  agreement->set_retention(table.retentions[*compared]);
  SetCorrelation(damage.sensitivity, &v1::DamageAgreement::mutable_sensitivity, agreement);
  SetCorrelation(damage.layer_index, &v1::DamageAgreement::mutable_layer_index, agreement);
  SetCorrelation(damage.local_response, &v1::DamageAgreement::mutable_local_response, agreement);
}

// A layer's damages of one kind, as rows of the table; the errors where they are present.
template <typename Entry>
void AddDamages(const google::protobuf::RepeatedPtrField<Entry>& entries,
                std::vector<std::vector<double>>& means, std::vector<std::vector<double>>& errors) {
  if (entries.empty()) return;
  std::vector<double> mean, error;
  for (const Entry& entry : entries) {
    mean.push_back(entry.damage().mean_kl());
    if (entry.damage().has_standard_error()) error.push_back(entry.damage().standard_error());
  }
  means.push_back(std::move(mean));
  if (!error.empty()) errors.push_back(std::move(error));
}

// Shapes are checked with the profile. Labels must be those of the settings.
absl::Status DamageFromProto(const v1::Profile& proto, const CalibrationSettings& settings,
                             ProfileDamage& damage) {
  if (settings.damage_examples > 0) damage.table.prompt_tokens = settings.prefix_tokens;
  damage.table.retentions = settings.damage_retentions;
  if (settings.damage_storage) {
    damage.table.types.assign(std::begin(kDamageTypes), std::end(kDamageTypes));
  }
  for (const v1::LayerSensitivity& layer : proto.layers()) {
    AddDamages(layer.retentions(), damage.table.rows, damage.rows_error);
    AddDamages(layer.storage(), damage.table.storage, damage.storage_error);
    for (int i = 0; i < layer.retentions_size(); ++i) {
      const auto at = static_cast<size_t>(i);
      if (at < damage.table.retentions.size() &&
          layer.retentions(i).retention() == damage.table.retentions[at]) {
        continue;
      }
      return Damaged(absl::StrCat("layers[", layer.layer(), "].retentions[", i, "] is of ",
                                  layer.retentions(i).retention()));
    }
    for (int i = 0; i < layer.storage_size(); ++i) {
      const auto at = static_cast<size_t>(i);
      if (at < damage.table.types.size() &&
          layer.storage(i).keys() == KvTypeToProto(damage.table.types[at].k) &&
          layer.storage(i).values() == KvTypeToProto(damage.table.types[at].v)) {
        continue;
      }
      return Damaged(
          absl::StrCat("layers[", layer.layer(), "].storage[", i, "] is not of its types"));
    }
  }
  const v1::DamageAgreement& agreement = proto.damage_agreement();
  const std::optional<size_t> compared = ComparedRetention(damage.table);
  if (proto.has_damage_agreement() != compared.has_value() ||
      (compared.has_value() && agreement.retention() != damage.table.retentions[*compared])) {
    return Damaged("damage_agreement is not at the retention nearest to 0.1");
  }
  damage.sensitivity = CorrelationFromProto(agreement.has_sensitivity(), agreement.sensitivity());
  damage.layer_index = CorrelationFromProto(agreement.has_layer_index(), agreement.layer_index());
  damage.local_response =
      CorrelationFromProto(agreement.has_local_response(), agreement.local_response());
  return absl::OkStatus();
}

}  // namespace

v1::ComputeType ComputeTypeToProto(const std::string& name) {
  if (name == "fp32") return v1::COMPUTE_TYPE_FP32;
  if (name == "bf16") return v1::COMPUTE_TYPE_BF16;
  return v1::COMPUTE_TYPE_UNSPECIFIED;
}

CalibrationSettings SettingsFromProto(const v1::CalibrationSettings& proto,
                                      const CalibrationSettings& defaults) {
  CalibrationSettings settings = defaults;
  if (proto.has_examples()) settings.examples = proto.examples();
  if (proto.has_prefix_tokens()) settings.prefix_tokens = proto.prefix_tokens();
  if (proto.has_window_tokens()) settings.window_tokens = proto.window_tokens();
  if (proto.has_eta()) settings.eta = proto.eta();
  if (proto.has_sinks()) settings.sinks = proto.sinks();
  if (proto.has_recent()) settings.recent = proto.recent();
  if (proto.has_seed()) settings.seed = proto.seed();
  if (proto.has_damage_examples()) settings.damage_examples = proto.damage_examples();
  if (!proto.damage_retentions().empty()) {
    settings.damage_retentions = {proto.damage_retentions().begin(),
                                  proto.damage_retentions().end()};
  }
  if (proto.has_damage_storage()) settings.damage_storage = proto.damage_storage();
  return settings;
}

CalibrationSettings RequestedSettings(const v1::CalibrationSettings& proto,
                                      const CalibrationSettings& configured) {
  CalibrationSettings defaults = configured;
  defaults.damage_retentions.clear();
  defaults.damage_storage = false;
  CalibrationSettings settings = SettingsFromProto(proto, defaults);
  if (settings.damage_examples == 0) return settings;
  if (proto.damage_retentions().empty()) {
    settings.damage_retentions = settings.DefaultDamageRetentions();
  }
  if (!proto.has_damage_storage()) settings.damage_storage = true;
  return settings;
}

v1::CalibrationSettings SettingsToProto(const CalibrationSettings& settings) {
  v1::CalibrationSettings proto;
  proto.set_examples(settings.examples);
  proto.set_prefix_tokens(settings.prefix_tokens);
  proto.set_window_tokens(settings.window_tokens);
  proto.set_eta(settings.eta);
  proto.set_sinks(settings.sinks);
  proto.set_recent(settings.recent);
  proto.set_seed(settings.seed);
  proto.set_damage_examples(settings.damage_examples);
  proto.mutable_damage_retentions()->Assign(settings.damage_retentions.begin(),
                                            settings.damage_retentions.end());
  proto.set_damage_storage(settings.damage_storage);
  return proto;
}

v1::Profile ProfileToProto(const Profile& profile, const std::optional<RunInfo>& run) {
  v1::Profile proto;
  proto.set_profile_id(profile.id());
  proto.set_content_digest(ProfileContentDigest(profile));
  proto.set_model_fingerprint(profile.key.model_fingerprint);
  proto.set_model_name(profile.model_name);
  proto.set_compute_type(ComputeTypeToProto(profile.key.compute_type));
  *proto.mutable_settings() = SettingsToProto(profile.key.settings);
  proto.set_corpus_digest(profile.key.corpus_digest);
  proto.set_corpus_name(profile.corpus_name);
  proto.set_examples_measured(profile.examples_computed);
  for (size_t l = 0; l < profile.sensitivity.size(); ++l) {
    v1::LayerSensitivity* layer = proto.add_layers();
    layer->set_layer(static_cast<int32_t>(l));
    layer->set_mean_kl(profile.sensitivity[l]);
    if (l < profile.standard_error.size()) layer->set_standard_error(profile.standard_error[l]);
    layer->set_local_response(profile.local_response[l]);
    if (l < profile.local_response_error.size()) {
      layer->set_local_response_error(profile.local_response_error[l]);
    }
  }
  DamageToProto(profile.damage, &proto);
  if (profile.split_half_spearman.has_value())
    proto.set_split_half_spearman(*profile.split_half_spearman);
  proto.set_software_version(profile.software_version);
  if (run.has_value()) {
    TimeUtil::FromString(run->started_at, proto.mutable_run()->mutable_started_at());
    proto.mutable_run()->set_duration_seconds(run->duration_seconds);
    proto.mutable_run()->set_host(run->host);
    proto.mutable_run()->set_threads(run->threads);
  }
  return proto;
}

absl::StatusOr<ProfileAndRun> ProfileFromProto(const v1::Profile& proto) {
  ProfileAndRun result;
  Profile& profile = result.profile;
  profile.key.model_fingerprint = proto.model_fingerprint();
  switch (proto.compute_type()) {
    case v1::COMPUTE_TYPE_FP32:
      profile.key.compute_type = "fp32";
      break;
    case v1::COMPUTE_TYPE_BF16:
      profile.key.compute_type = "bf16";
      break;
    default:
      return Damaged(absl::StrCat("compute_type is ", static_cast<int>(proto.compute_type())));
  }
  profile.key.settings = SettingsFromProto(proto.settings(), CalibrationSettings());
  profile.key.corpus_digest = proto.corpus_digest();
  profile.model_name = proto.model_name();
  profile.corpus_name = proto.corpus_name();
  profile.software_version = proto.software_version();
  profile.layers = proto.layers_size();
  profile.examples_computed = proto.examples_measured();
  for (int l = 0; l < proto.layers_size(); ++l) {
    const v1::LayerSensitivity& layer = proto.layers(l);
    if (layer.layer() != l)
      return Damaged(absl::StrCat("layers[", l, "] is of layer ", layer.layer()));
    profile.sensitivity.push_back(layer.mean_kl());
    if (layer.has_standard_error()) profile.standard_error.push_back(layer.standard_error());
    profile.local_response.push_back(layer.local_response());
    if (layer.has_local_response_error()) {
      profile.local_response_error.push_back(layer.local_response_error());
    }
  }
  if (absl::Status s = DamageFromProto(proto, profile.key.settings, profile.damage); !s.ok()) {
    return s;
  }
  if (proto.has_split_half_spearman()) profile.split_half_spearman = proto.split_half_spearman();
  if (absl::Status status = ValidateProfile(profile); !status.ok())
    return Damaged(status.message());
  if (profile.id() != proto.profile_id()) {
    return Damaged(absl::StrCat("its settings give profile_id ", profile.id(), ", it says ",
                                proto.profile_id()));
  }
  if (ProfileContentDigest(profile) != proto.content_digest()) {
    return Damaged(absl::StrCat("its fields give content_digest ", ProfileContentDigest(profile),
                                ", it says ", proto.content_digest()));
  }
  if (proto.has_run()) {
    RunInfo run;
    run.started_at = TimeUtil::ToString(proto.run().started_at());
    run.duration_seconds = proto.run().duration_seconds();
    run.host = proto.run().host();
    run.threads = proto.run().threads();
    result.run = std::move(run);
  }
  return result;
}

v1::CalibrationStarted StartedToProto(const CalibrationStarted& started) {
  v1::CalibrationStarted proto;
  proto.set_job_id(started.job_id);
  proto.set_profile_id(started.profile_id);
  *proto.mutable_settings() = SettingsToProto(started.settings);
  proto.set_joined(started.joined);
  return proto;
}

v1::CalibrationProgress ProgressToProto(const CalibrationProgress& progress) {
  v1::CalibrationProgress proto;
  proto.set_examples_done(progress.probe.examples_done);
  proto.set_examples_total(progress.probe.examples_total);
  proto.set_fraction(progress.probe.fraction);
  proto.set_elapsed_seconds(progress.elapsed_seconds);
  return proto;
}

v1::Calibration CalibrationToProto(const CalibrationRecord& record) {
  v1::Calibration proto;
  proto.set_job_id(record.job_id());
  proto.set_profile_id(record.profile_id);
  proto.set_state(StateToProto(record.state));
  *proto.mutable_progress() = ProgressToProto(record.progress);
  *proto.mutable_settings() = SettingsToProto(record.settings);
  proto.set_corpus_name(record.corpus_name);
  TimeUtil::FromString(record.started_at, proto.mutable_started_at());
  proto.set_listeners(record.listeners);
  proto.set_detached(record.detached);
  if (record.error_code != absl::StatusCode::kOk) {
    proto.mutable_error()->set_code(static_cast<int32_t>(record.error_code));
    proto.mutable_error()->set_message(record.error);
  }
  return proto;
}

}  // namespace ripplekv
