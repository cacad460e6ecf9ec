#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ripplekv/v1/calibration.pb.h"
#include "ripplekv/v1/decode.pb.h"

namespace ripplekv {

// A generation over 30 layers: 4,096 prompt tokens, 800 + 2 l positions kept, 57 tokens out.
inline v1::GenerateComplete TestComplete() {
  v1::GenerateComplete complete;
  complete.set_finish_reason(v1::FINISH_REASON_END_OF_TEXT);
  complete.set_stop_token_id(2);
  complete.mutable_usage()->set_prompt_tokens(4096);
  complete.mutable_usage()->set_output_tokens(57);
  v1::CacheUsage& cache = *complete.mutable_cache();
  for (int l = 0; l < 30; ++l) {
    v1::LayerUsage& layer = *cache.add_layers();
    layer.set_layer(l);
    layer.set_positions_kept(800 + 2 * l);
    layer.set_kv_bytes((800 + 2 * l) * 768);
  }
  cache.set_kv_bytes(int64_t{30} * 829 * 768);
  cache.set_full_kv_bytes(int64_t{30} * 4096 * 768);
  cache.set_peak_prefill_bytes(22 << 20);
  complete.mutable_timings()->set_prefill_seconds(2);
  complete.mutable_timings()->set_decode_seconds(0.8);
  complete.mutable_timings()->set_first_token_seconds(2.25);
  complete.set_seed(7);
  return complete;
}

// A context of 4,096 tokens over 30 layers: 800 + 2 l positions kept.
inline v1::Context TestContext() {
  v1::Context context;
  context.set_context_id(std::string(32, 'b'));
  context.set_tokens(4096);
  *context.mutable_layers() = TestComplete().cache().layers();
  context.set_kv_bytes(int64_t{30} * 829 * 768);
  context.set_full_kv_bytes(int64_t{30} * 4096 * 768);
  context.set_page_bytes(20 << 20);
  context.mutable_created_at()->set_seconds(1789000000);
  context.set_idle_seconds(42);
  context.mutable_expires_at()->set_seconds(1789003600);
  context.set_chat(true);
  return context;
}

// A profile in force with the given s_l; standard errors are a tenth of them.
inline v1::GetProfileResponse TestProfile(const std::vector<double>& mean_kl) {
  v1::GetProfileResponse response;
  response.set_in_force(true);
  v1::Profile& profile = *response.mutable_profile();
  profile.set_profile_id(std::string(64, 'c'));
  profile.set_model_name("SmolLM2");
  profile.set_model_fingerprint(std::string(64, 'f'));
  profile.set_compute_type(v1::COMPUTE_TYPE_BF16);
  v1::CalibrationSettings& settings = *profile.mutable_settings();
  settings.set_examples(24);
  settings.set_prefix_tokens(1024);
  settings.set_window_tokens(64);
  settings.set_eta(0.5);
  settings.set_sinks(4);
  settings.set_recent(32);
  settings.set_seed(0);
  profile.set_corpus_name("default");
  profile.set_examples_measured(24);
  for (const double value : mean_kl) {
    v1::LayerSensitivity& layer = *profile.add_layers();
    layer.set_layer(profile.layers_size() - 1);
    layer.set_mean_kl(value);
    layer.set_standard_error(value / 10);
  }
  profile.set_split_half_spearman(0.75);
  profile.set_software_version("0.1.0");
  profile.mutable_run()->mutable_started_at()->set_seconds(1789000000);
  profile.mutable_run()->set_duration_seconds(42);
  profile.mutable_run()->set_host("host1");
  profile.mutable_run()->set_threads(2);
  return response;
}

// The same with the damage of two retentions and two storage types: s_l, s_l / 10, s_l / 100 and
// s_l / 20.
inline v1::GetProfileResponse TestDamageProfile(const std::vector<double>& mean_kl) {
  v1::GetProfileResponse response = TestProfile(mean_kl);
  v1::Profile& profile = *response.mutable_profile();
  profile.mutable_settings()->set_damage_examples(8);
  for (v1::LayerSensitivity& layer : *profile.mutable_layers()) {
    for (const auto& [retention, share] : {std::pair{0.04, 1.0}, {0.1, 10.0}}) {
      v1::RetentionDamage& kept = *layer.add_retentions();
      kept.set_retention(retention);
      kept.mutable_damage()->set_mean_kl(layer.mean_kl() / share);
    }
    for (const auto& [values, share] :
         {std::pair{v1::KV_TYPE_INT8, 100.0}, {v1::KV_TYPE_INT4, 20.0}}) {
      v1::StorageDamage& stored = *layer.add_storage();
      stored.set_keys(v1::KV_TYPE_INT8);
      stored.set_values(values);
      stored.mutable_damage()->set_mean_kl(layer.mean_kl() / share);
    }
  }
  v1::DamageAgreement& agreement = *profile.mutable_damage_agreement();
  agreement.set_retention(0.1);
  agreement.mutable_sensitivity()->set_spearman(0.87);
  agreement.mutable_sensitivity()->set_low(0.75);
  agreement.mutable_sensitivity()->set_high(0.9);
  agreement.mutable_layer_index()->set_spearman(-0.02);
  agreement.mutable_layer_index()->set_low(-0.1);
  agreement.mutable_layer_index()->set_high(0.05);
  return response;
}

// A plan of the given budgets for prompts of 1,000 tokens.
inline v1::PlanBudgetsResponse TestPlan(const std::vector<int>& positions) {
  v1::PlanBudgetsResponse response;
  v1::Plan& plan = *response.mutable_plan();
  plan.set_source(v1::PLAN_SOURCE_PROFILE);
  plan.set_profile_id(std::string(64, 'c'));
  plan.mutable_allocator()->mutable_ripple()->set_r(1.5);
  plan.mutable_allocator()->mutable_ripple()->set_gamma(16);
  plan.mutable_size()->set_retention(0.2);
  plan.set_min_positions(256);
  plan.set_floor_positions(37);
  int64_t total = 0;
  for (const int count : positions) total += count;
  for (const int count : positions) {
    v1::LayerBudget& layer = *response.add_layers();
    layer.set_layer(response.layers_size() - 1);
    layer.set_positions(count);
    layer.set_multiplier(total == 0 ? 1 : static_cast<double>(count) * positions.size() / total);
  }
  response.set_total_positions(total);
  response.set_requested_positions(total);
  response.set_kv_bytes(total * 768);
  response.set_full_kv_bytes(static_cast<int64_t>(positions.size()) * 1000 * 768);
  return response;
}

// Half measured; number 2 where it runs or was cancelled, 1 where it ended otherwise.
inline v1::Calibration TestCalibration(v1::CalibrationState state) {
  v1::Calibration calibration;
  const bool second =
      state == v1::CALIBRATION_STATE_RUNNING || state == v1::CALIBRATION_STATE_CANCELLED;
  calibration.set_job_id(second ? "calibration-2" : "calibration-1");
  calibration.set_profile_id(std::string(64, second ? 'c' : 'd'));
  calibration.set_state(state);
  v1::CalibrationProgress& progress = *calibration.mutable_progress();
  progress.set_examples_done(12);
  progress.set_examples_total(24);
  progress.set_fraction(0.5);
  progress.set_elapsed_seconds(75);
  calibration.mutable_started_at()->set_seconds(1767225600);  // 2026-01-01
  if (state == v1::CALIBRATION_STATE_FAILED) {
    calibration.mutable_error()->set_code(8);
    calibration.mutable_error()->set_message("the disk is full");
  }
  return calibration;
}

}  // namespace ripplekv
