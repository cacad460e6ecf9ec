#pragma once

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
  return profile;
}

}  // namespace ripplekv
