// Writes the probe's divergences for given token ids, for comparison with an independent
// implementation, and the profile that they make: no server, no corpus.
//
//   ripplekv-probe-dump MODEL fp32|bf16 THREADS TOKENS.i32 DIVERGENCES.f64 PROFILE.json
//   NAME=VALUE...
//
// TOKENS: the examples one after the other, prefix + window ids each. DIVERGENCES:
// [examples][layers]. Names: prefix, window, eta, sinks, recent, seed, damage (its examples),
// retentions (A,B,...), storage (0 or 1), sizes (its examples: the last of all, of the same
// tokens), size_retentions (A,B,...) (defaults as of CalibrationSettings; sizes under the uniform
// allocator, with keys in int8 and values in int4, for the prefix); group (alterations) and
// variants (defaults as of Probe::Batching).
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "calibration/profile.h"
#include "calibration/staged_probe.h"
#include "kernels/thread_pool.h"
#include "model/decoder.h"
#include "model/load_decoder.h"

namespace ripplekv {
namespace {

int Fail(const std::string& message) {
  std::cerr << "ripplekv-probe-dump: " << message << "\n";
  return 1;
}

std::vector<double> Numbers(const char* text) {
  std::vector<double> numbers;
  std::istringstream list(text);
  for (std::string item; std::getline(list, item, ',');) {
    numbers.push_back(std::atof(item.c_str()));
  }
  return numbers;
}

bool Set(const std::string& argument, CalibrationSettings& settings, Probe::Batching& batching) {
  const size_t equals = argument.find('=');
  if (equals == std::string::npos) return false;
  const std::string name = argument.substr(0, equals);
  const char* value = argument.c_str() + equals + 1;
  if (name == "prefix") {
    settings.prefix_tokens = std::atoi(value);
  } else if (name == "window") {
    settings.window_tokens = std::atoi(value);
  } else if (name == "eta") {
    settings.eta = std::atof(value);
  } else if (name == "sinks") {
    settings.sinks = std::atoi(value);
  } else if (name == "recent") {
    settings.recent = std::atoi(value);
  } else if (name == "seed") {
    settings.seed = std::strtoull(value, nullptr, 10);
  } else if (name == "damage") {
    settings.damage_examples = std::atoi(value);
  } else if (name == "retentions") {
    settings.damage_retentions = Numbers(value);
  } else if (name == "sizes") {
    settings.sizes.examples = std::atoi(value);
  } else if (name == "size_retentions") {
    settings.sizes.retentions = Numbers(value);
  } else if (name == "storage") {
    settings.damage_storage = std::atoi(value) != 0;
  } else if (name == "group") {
    batching.alterations = std::atoi(value);
  } else if (name == "variants") {
    batching.variants = std::atoi(value);
  } else {
    return false;
  }
  return true;
}

int Main(int argc, char** argv) {
  if (argc < 7) {
    return Fail(
        "arguments: MODEL fp32|bf16 THREADS TOKENS.i32 DIVERGENCES.f64 PROFILE.json NAME=VALUE...");
  }
  CalibrationSettings settings;
  Probe::Batching batching;
  for (int i = 7; i < argc; ++i) {
    if (!Set(argv[i], settings, batching)) return Fail(std::string("unknown argument ") + argv[i]);
  }
  ThreadPool pool(std::atoi(argv[3]));
  auto decoder = LoadDecoder(argv[1], argv[2], &pool);
  if (!decoder.ok()) return Fail(std::string(decoder.status().message()));

  std::ifstream in(argv[4], std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(in),
                                std::istreambuf_iterator<char>()};
  const size_t example_bytes = static_cast<size_t>(settings.example_tokens()) * sizeof(int32_t);
  if (bytes.empty() || bytes.size() % example_bytes != 0) {
    return Fail(std::string(argv[4]) + " does not hold whole examples");
  }
  std::vector<std::vector<int32_t>> examples;
  for (size_t at = 0; at < bytes.size(); at += example_bytes) {
    examples.emplace_back(static_cast<size_t>(settings.example_tokens()));
    std::memcpy(examples.back().data(), bytes.data() + at, example_bytes);
  }
  settings.examples = static_cast<int>(examples.size());

  CalibrationExamples all;
  if (settings.sizes.examples > 0) {
    settings.sizes.prompt_tokens = {settings.prefix_tokens};
    settings.sizes.kv_types = KvTypes(KvType::kInt8, KvType::kInt4);
    all.sizes.assign(examples.end() - std::min(settings.sizes.examples, settings.examples),
                     examples.end());
  }
  all.layers = std::move(examples);
  auto probe = MakeCalibrationProbe(decoder->get(), settings, std::move(all), batching);
  if (!probe.ok()) return Fail(std::string(probe.status().message()));
  while (!(*probe)->done()) {
    if (absl::Status s = (*probe)->Step(); !s.ok()) return Fail(std::string(s.message()));
  }

  std::ofstream out(argv[5], std::ios::binary);
  for (const std::vector<double>& layers : (*probe)->measurements().sensitivity) {
    out.write(reinterpret_cast<const char*>(layers.data()),
              static_cast<std::streamsize>(layers.size() * sizeof(double)));
  }
  if (!out.flush()) return Fail(std::string("cannot write ") + argv[5]);

  Profile profile;
  profile.key.model_fingerprint = std::string(64, '0');
  profile.key.compute_type = argv[2];
  profile.key.settings = settings;
  profile.key.corpus_digest = std::string(64, '0');
  profile.model_name = (*decoder)->config().name;
  profile.corpus_name = "inline";
  profile.software_version = "test";
  profile.layers = (*decoder)->config().layers;
  SummariseMeasurements((*probe)->measurements(), profile);
  auto json = SerializeProfile(profile);
  if (!json.ok()) return Fail(std::string(json.status().message()));
  std::ofstream profile_out(argv[6], std::ios::binary);
  profile_out << *json;
  if (!profile_out.flush()) return Fail(std::string("cannot write ") + argv[6]);
  return 0;
}

}  // namespace
}  // namespace ripplekv

int main(int argc, char** argv) { return ripplekv::Main(argc, argv); }
