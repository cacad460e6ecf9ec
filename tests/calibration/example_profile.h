#pragma once

#include <iterator>
#include <string>

#include "calibration/profile.h"

namespace ripplekv {

// A small valid profile; `seed` tells several apart.
inline Profile ExampleProfile(uint64_t seed = 0) {
  Profile profile;
  profile.key.model_fingerprint = std::string(64, 'a');
  profile.key.compute_type = "bf16";
  profile.key.settings.seed = seed;
  profile.key.corpus_digest = std::string(64, 'b');
  profile.model_name = "Tiny";
  profile.corpus_name = "default";
  profile.software_version = "0.1.0";
  profile.layers = 3;
  profile.examples_computed = 24;
  profile.sensitivity = {0.001, 0.0052, 0.0125};
  profile.standard_error = {1e-4, 2e-4, 1e-300};
  profile.split_half_spearman = 0.5;
  profile.local_response = {0.25, 0.125, 0};
  profile.local_response_error = {0.01, 0.02, 0.03};
  return profile;
}

// The same with curves on two examples.
inline Profile ExampleDamageProfile() {
  Profile profile = ExampleProfile();
  profile.key.settings.damage_examples = 2;
  profile.key.settings.damage_retentions = {0.1, 0.4};
  profile.key.settings.damage_storage = true;
  ProfileDamage& damage = profile.damage;
  damage.table.prompt_tokens = 1024;
  damage.table.retentions = {0.1, 0.4};
  damage.table.types.assign(std::begin(kDamageTypes), std::end(kDamageTypes));
  damage.table.rows = {{0.5, 0.25}, {0.125, 0.0625}, {1, 0.001}};
  damage.rows_error = {{0.1, 0.01}, {0.2, 0.02}, {0.3, 0}};
  damage.table.storage = {{0.001, 0.1, 0.05}, {0.002, 0.2, 0.06}, {0, 0.3, 0.07}};
  damage.storage_error = {{1e-4, 0.01, 0.005}, {2e-4, 0.02, 0.006}, {3e-4, 0.03, 0.007}};
  damage.sensitivity = RankCorrelation{0.5, -0.5, 1};
  damage.local_response = RankCorrelation{-0.5, -1, 0};
  return profile;  // the layer index: not defined
}

// The same with a curve by size, of two examples.
inline Profile ExampleSizeProfile() {
  Profile profile = ExampleProfile();
  CalibrationSettings& settings = profile.key.settings;
  settings.selector =
      RecentAttention{.window = 16, .queries = 64, .kernel = 5, .pooling = Pooling::kMean};
  settings.sizes = {
      .examples = 2,
      .prompt_tokens = {512, 1024},
      .retentions = {0.1, 1},
      .allocator =
          ShuffledRippleAllocator{{.r = 3, .gamma = 16, .map = SignalMap::kLog}, /*seed=*/7},
      .kv_types = KvTypes(KvType::kInt8, KvType::kInt4)};
  profile.sizes.mean_kl = {{0.5, 0.01}, {0.25, 0.005}};
  profile.sizes.mean_kl_error = {{0.05, 0.001}, {0.025, 0}};
  return profile;
}

}  // namespace ripplekv
