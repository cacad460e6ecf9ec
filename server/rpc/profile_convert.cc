#include "server/rpc/profile_convert.h"

#include <google/protobuf/util/time_util.h>

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/rpc/kv_type_convert.h"
#include "server/rpc/settings_convert.h"

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

void SizesToProto(const Profile& profile, v1::Profile* proto) {
  const SizeSettings& settings = profile.key.settings.sizes;
  for (size_t p = 0; p < profile.sizes.mean_kl.size(); ++p) {
    for (size_t r = 0; r < profile.sizes.mean_kl[p].size(); ++r) {
      v1::SizeDamage* size = proto->add_sizes();
      size->set_prompt_tokens(static_cast<int32_t>(settings.prompt_tokens[p]));
      size->set_retention(settings.retentions[r]);
      SetDamage(profile.sizes.mean_kl[p][r], profile.sizes.mean_kl_error, p, r,
                size->mutable_damage());
    }
  }
}

// Labels must be those of the settings; shapes are checked with the profile.
absl::Status SizesFromProto(const v1::Profile& proto, const SizeSettings& settings,
                            ProfileSizes& sizes) {
  const size_t columns = settings.retentions.size();
  for (int i = 0; i < proto.sizes_size(); ++i) {
    const v1::SizeDamage& size = proto.sizes(i);
    const size_t p = columns == 0 ? 0 : static_cast<size_t>(i) / columns;
    const size_t r = columns == 0 ? 0 : static_cast<size_t>(i) % columns;
    if (p >= settings.prompt_tokens.size() || size.prompt_tokens() != settings.prompt_tokens[p] ||
        size.retention() != settings.retentions[r]) {
      return Damaged(absl::StrCat("sizes[", i, "] is of ", size.prompt_tokens(), " tokens and ",
                                  size.retention()));
    }
    if (r == 0) sizes.mean_kl.emplace_back();
    sizes.mean_kl.back().push_back(size.damage().mean_kl());
    if (!size.damage().has_standard_error()) continue;
    if (sizes.mean_kl_error.size() <= p) sizes.mean_kl_error.emplace_back();
    sizes.mean_kl_error.back().push_back(size.damage().standard_error());
  }
  return absl::OkStatus();
}

}  // namespace

v1::ComputeType ComputeTypeToProto(const std::string& name) {
  if (name == "fp32") return v1::COMPUTE_TYPE_FP32;
  if (name == "bf16") return v1::COMPUTE_TYPE_BF16;
  return v1::COMPUTE_TYPE_UNSPECIFIED;
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
  SizesToProto(profile, &proto);
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
  auto settings = SettingsFromProto(proto.settings(), CalibrationSettings());
  if (!settings.ok()) return Damaged(settings.status().message());
  profile.key.settings = *std::move(settings);
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
  if (absl::Status s = SizesFromProto(proto, profile.key.settings.sizes, profile.sizes); !s.ok()) {
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
