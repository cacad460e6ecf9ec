#include "server/calibration_process.h"

#include <thread>
#include <utility>

#include "server/kv_types.h"

namespace ripplekv {

CalibrationProcess::CalibrationProcess(const ServerOptions& options,
                                       std::shared_ptr<ProfileStore> store, Readiness* readiness,
                                       const Observers& observers)
    : options_(options),
      store_(std::move(store)),
      readiness_(readiness),
      log_(observers.log),
      metrics_(observers.metrics),
      service_(&slot_, observers) {}

CalibrationProcess::~CalibrationProcess() { Stop(); }

absl::Status CalibrationProcess::Load() {
  absl::StatusOr<ComputeType> compute = ParseComputeType(options_.compute);
  if (!compute.ok()) return compute.status();
  absl::StatusOr<std::optional<KvTypes>> kv_types = ParseKvTypes(options_.kv_type);
  if (!kv_types.ok()) return kv_types.status();
  absl::StatusOr<LoadedModel> loaded =
      LoadModel(options_.model, *compute, *kv_types, options_.threads);
  if (!loaded.ok()) return loaded.status();
  const std::shared_ptr<const ModelInfo> model = loaded->info;
  pool_ = std::move(loaded->pool);
  decoder_ = std::move(loaded->decoder);
  log_->Info("model_loaded", {{"model", options_.model},
                              {"name", model->config.name},
                              {"fingerprint", model->fingerprint},
                              {"compute", options_.compute},
                              {"threads", options_.threads}});
  auto plans = MakePlans(options_, *model, *store_, log_, metrics_);
  if (!plans.ok()) return plans.status();
  plans_ = *std::move(plans);
  if (!plans_->has_profile()) plans_->SetStatus("not measured yet: nobody has asked");
  jobs_ = std::make_unique<JobThread>();
  calibrator_ = MakeCalibrator(
      options_, model, store_, [decoder = decoder_.get()] { return decoder; },
      [jobs = jobs_.get()](std::shared_ptr<BackgroundJob> job) {
        return jobs->Submit(std::move(job));
      },
      plans_.get(), log_, metrics_);
  metrics_->SetCalibrationState([calibrator = calibrator_.get()]() -> CalibrationState {
    const std::optional<CalibrationProgress> running = calibrator->running();
    return running.has_value() ? CalibrationState{true, running->probe.fraction}
                               : CalibrationState{};
  });

  auto backend = std::make_shared<CalibrationBackend>();
  backend->model = model;
  backend->calibrator = calibrator_.get();
  backend->store = store_.get();
  backend->plans = plans_.get();
  backend->corpus = options_.corpus;
  backend->defaults = {.allocators = options_.allocators(), .selectors = options_.selectors()};
  backend->engine_options.plans_choose_types = options_.plans_choose_types();
  backend->threads = options_.threads;
  slot_.Set(std::move(backend));
  readiness_->Ready();
  return absl::OkStatus();
}

void CalibrationProcess::Drain(std::chrono::steady_clock::time_point deadline) {
  slot_.Close();
  // A measurement that is nearly done may end; polled, since nothing else waits here.
  while (calibrator_ != nullptr && calibrator_->running().has_value() &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

void CalibrationProcess::Stop() {
  metrics_->SetCalibrationState(nullptr);
  if (jobs_ != nullptr) jobs_->Shutdown();
}

}  // namespace ripplekv
