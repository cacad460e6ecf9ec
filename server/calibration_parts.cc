#include "server/calibration_parts.h"

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "calibration/default_corpus.h"
#include "calibration/staged_probe.h"
#include "server/kv_types.h"
#include "server/version.h"

namespace ripplekv {
namespace {

constexpr std::chrono::seconds kFirstPause(10);
constexpr std::chrono::minutes kLongestPause(10);

}  // namespace

absl::StatusOr<std::shared_ptr<ProfileStore>> OpenStore(const std::string& directory, Log* log,
                                                        Metrics* metrics) {
  absl::StatusOr<std::unique_ptr<ProfileStore>> store = ProfileStore::Open(directory);
  if (!store.ok()) return store.status();
  const std::vector<StoreProblem> problems = (*store)->problems();
  for (const StoreProblem& problem : problems) {
    log->Warning("profile_file_not_used", {{"file", problem.file},
                                           {"reason", problem.reason},
                                           {"set_aside_as", problem.set_aside_as}});
  }
  std::shared_ptr<ProfileStore> shared = *std::move(store);
  metrics->SetProfileStoreProblems(
      [shared] { return static_cast<int64_t>(shared->problems().size()); });
  return shared;
}

absl::StatusOr<std::unique_ptr<PlanKeeper>> MakePlans(const ServerOptions& options,
                                                      const ModelInfo& model, ProfileStore& store,
                                                      Log* log, Metrics* metrics) {
  absl::StatusOr<Corpus> corpus = FindCorpus(options.corpus_dir, options.corpus);
  if (!corpus.ok())
    return absl::Status(corpus.status().code(),
                        absl::StrCat("--corpus: ", corpus.status().message()));
  const CalibrationSettings settings =
      options.calibration_settings(model.config.context_length, model.kv_types);
  if (options.calibration != kCalibrationOff) {
    if (absl::Status status = settings.Validate(model.config.context_length); !status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat("calibration settings: ", status.message(),
                                       " (set --calibration-..., or --calibration off)"));
    }
  }
  PlanSpec spec;
  spec.layers = model.config.layers;
  spec.allocator = options.plan_allocator();
  spec.size = Retention{options.retention};
  spec.min_positions = options.min_positions;
  spec.selector = options.plan_selector();
  spec.sinks = options.sinks;
  spec.kv_types = model.kv_types;
  spec.choose_types = options.kv_type == kKvTypeAuto;
  spec.kv_shape = {.kv_heads = model.config.kv_heads, .head_dim = model.config.head_dim};
  ProfileKey key;
  key.model_fingerprint = model.fingerprint;
  key.compute_type = ComputeTypeName(model.compute);
  key.settings = settings;
  key.corpus_digest = corpus->digest;
  auto plans = PlanKeeper::Create(std::move(spec), std::move(key), log, metrics);
  if (!plans.ok()) return plans.status();
  absl::StatusOr<Profile> stored = store.FindMatching((*plans)->key());
  if (stored.ok()) {
    (*plans)->Adopt(*stored);
  } else if (!absl::IsNotFound(stored.status())) {
    log->Warning("profile_not_read", {{"error", stored.status().message()}});
  }
  return plans;
}

std::unique_ptr<Calibrator> MakeCalibrator(
    const ServerOptions& options, std::shared_ptr<const ModelInfo> model,
    std::shared_ptr<ProfileStore> store, std::function<Decoder*()> decoder,
    std::function<absl::Status(std::shared_ptr<BackgroundJob>)> submit, PlanKeeper* plans, Log* log,
    Metrics* metrics) {
  CalibratorOptions what;
  what.model_fingerprint = model->fingerprint;
  what.model_name = model->config.name;
  what.compute_type = ComputeTypeName(model->compute);
  what.layers = model->config.layers;
  what.context_length = model->config.context_length;
  what.threads = options.threads;
  what.software_version = kVersion;
  CalibratorParts parts;
  parts.store = std::move(store);
  parts.find_corpus = [directory = options.corpus_dir](std::string_view name) {
    return FindCorpus(directory, std::string(name));
  };
  parts.tokenize = [tokenizer = model->tokenizer](std::string_view text) {
    return tokenizer->Encode(text, SpecialTokens::kAsText);
  };
  parts.make_probe = [decoder = std::move(decoder)](const CalibrationSettings& settings,
                                                    CalibrationExamples examples) {
    return MakeCalibrationProbe(decoder(), settings, std::move(examples));
  };
  parts.submit = std::move(submit);
  parts.on_profile = [plans, log, metrics](const CalibrationResult& result) {
    const double seconds = result.run.has_value() ? result.run->duration_seconds : 0;
    metrics->OnCalibration("measured", seconds);
    Log::Fields fields = {{"profile_id", result.profile.id()},
                          {"examples", result.profile.examples_computed},
                          {"seconds", seconds}};
    if (result.profile.split_half_spearman.has_value()) {
      fields.emplace_back("split_half_spearman", *result.profile.split_half_spearman);
    }
    log->Info("calibration_done", std::move(fields));
    plans->Adopt(result.profile);
  };
  parts.on_failure = [log, metrics](const std::string& job_id, const absl::Status& status) {
    ReportCalibrationFailure(job_id, status, log, metrics);
  };
  return std::make_unique<Calibrator>(std::move(what), std::move(parts));
}

std::unique_ptr<OwnCalibration> StartOwnCalibration(const ServerOptions& options,
                                                    Calibrator* calibrator, PlanKeeper* plans,
                                                    Log* log, Metrics* metrics) {
  CalibrationRequest request;
  request.settings = plans->key().settings;
  request.corpus = options.corpus;
  request.detach = true;
  return std::make_unique<OwnCalibration>(std::move(request), Backoff(kFirstPause, kLongestPause),
                                          calibrator, plans, log, metrics);
}

}  // namespace ripplekv
