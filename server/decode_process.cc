#include "server/decode_process.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/kv_types.h"

namespace ripplekv {
namespace {

// At least one, where there are any.
std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(std::ceil(seconds * 1000)));
}

EngineOptions EngineOptionsOf(const ServerOptions& options) {
  EngineOptions engine;
  engine.kv_memory_bytes = static_cast<size_t>(options.kv_memory_bytes);
  engine.work_memory_bytes = static_cast<size_t>(options.work_memory_bytes);
  engine.max_batch = options.max_batch;
  engine.max_queue = options.max_queue;
  engine.queue_timeout = Milliseconds(options.queue_timeout_seconds);
  engine.growth_cap = options.growth_cap;
  engine.context_memory_bytes = static_cast<size_t>(options.context_memory_bytes);
  engine.context_idle = Milliseconds(options.context_idle_seconds);
  engine.fidelity_sample = options.fidelity_sample;
  engine.plans_choose_types = options.plans_choose_types();
  return engine;
}

}  // namespace

DecodeProcess::DecodeProcess(const ServerOptions& options, std::shared_ptr<ProfileStore> store,
                             Readiness* readiness, const Observers& observers)
    : options_(options),
      store_(std::move(store)),
      readiness_(readiness),
      log_(observers.log),
      metrics_(observers.metrics),
      decode_service_(&decode_slot_, observers, Milliseconds(options.slow_reader_timeout_seconds)),
      calibration_service_(&calibration_slot_, observers) {}

DecodeProcess::~DecodeProcess() { Stop(); }

absl::Status DecodeProcess::Load() {
  absl::StatusOr<ComputeType> compute = ParseComputeType(options_.compute);
  if (!compute.ok()) return compute.status();
  absl::StatusOr<std::optional<KvTypes>> kv_types = ParseKvTypes(options_.kv_type);
  if (!kv_types.ok()) return kv_types.status();
  absl::StatusOr<LoadedModel> loaded =
      LoadModel(options_.model, *compute, *kv_types, options_.threads);
  if (!loaded.ok()) return loaded.status();
  const std::shared_ptr<const ModelInfo> model = loaded->info;
  log_->Info("model_loaded", {{"model", options_.model},
                              {"name", model->config.name},
                              {"fingerprint", model->fingerprint},
                              {"layers", model->config.layers},
                              {"context", model->config.context_length},
                              {"compute", options_.compute},
                              {"kv_type", KvTypesName(model->kv_types)},
                              {"threads", options_.threads}});
  if (!model->chat_template.ok()) {
    log_->Warning("no_chat_template", {{"reason", model->chat_template.status().message()}});
  }
  auto plans = MakePlans(options_, *model, *store_, log_, metrics_);
  if (!plans.ok()) return plans.status();
  plans_ = *std::move(plans);
  if (options_.calibration == kCalibrationOff && !plans_->has_profile()) {
    if (options_.wait_for_profile) {
      return absl::FailedPreconditionError(absl::StrCat(
          "--wait-for-profile would wait for ever: --calibration is off and ", store_->directory(),
          " holds no profile of this model and the configured settings"));
    }
    plans_->SetStatus("no stored profile of the configured settings, and --calibration is off");
  }
  if (absl::Status status = StartEngine(*std::move(loaded)); !status.ok()) return status;
  OpenServices(model);
  StartCalibration();
  plans_->SetListener([this](std::shared_ptr<const Plan> plan) {
    const bool ready = !options_.wait_for_profile || !plan->profile_id().empty();
    engine_->SetPlan(std::move(plan));
    if (ready) readiness_->Ready();
  });
  return absl::OkStatus();
}

absl::Status DecodeProcess::StartEngine(LoadedModel loaded) {
  pool_ = std::move(loaded.pool);
  absl::StatusOr<std::unique_ptr<Engine>> engine =
      Engine::Create(EngineOptionsOf(options_), std::move(loaded.decoder), loaded.info->tokenizer,
                     plans_->plan(), metrics_);
  if (!engine.ok()) return engine.status();
  engine_ = *std::move(engine);
  metrics_->SetEngineStats([engine = engine_.get()] { return engine->stats(); });
  return absl::OkStatus();
}

void DecodeProcess::OpenServices(std::shared_ptr<const ModelInfo> model) {
  const PlanDefaults defaults = {.allocators = options_.allocators(),
                                 .selectors = options_.selectors(),
                                 .layers = model->config.layers};
  auto calibration = std::make_shared<CalibrationBackend>();
  calibration->model = model;
  calibration->store = store_.get();
  calibration->plans = plans_.get();
  calibration->corpus = options_.corpus;
  calibration->defaults = defaults;
  calibration->engine_options = EngineOptionsOf(options_);
  calibration->threads = options_.threads;
  if (options_.calibration == kCalibrationEmbedded) {
    calibrator_ = MakeCalibrator(
        options_, model, store_, [engine = engine_.get()] { return engine->decoder(); },
        [engine = engine_.get()](std::shared_ptr<BackgroundJob> job) {
          return engine->SubmitBackground(std::move(job));
        },
        plans_.get(), log_, metrics_);
    calibration->calibrator = calibrator_.get();
  } else {
    calibration->no_calibrator =
        options_.calibrates_remotely()
            ? absl::StrCat("this server does not calibrate: ask the calibration server at ",
                           options_.calibration)
            : std::string(
                  "this server runs with --calibration off: start it with --calibration embedded, "
                  "or with a calibration server's HOST:PORT");
  }
  calibration_slot_.Set(std::move(calibration));

  auto decode = std::make_shared<DecodeBackend>();
  decode->model = std::move(model);
  decode->engine = engine_.get();
  decode->plans = plans_.get();
  decode->defaults = defaults;
  decode->engine_options = EngineOptionsOf(options_);
  decode->wait_for_profile = options_.wait_for_profile;
  decode->max_message_bytes = options_.max_message_bytes;
  decode_slot_.Set(std::move(decode));
}

void DecodeProcess::StartCalibration() {
  if (calibrator_ != nullptr) {
    metrics_->SetCalibrationState([calibrator = calibrator_.get()]() -> CalibrationState {
      const std::optional<CalibrationProgress> running = calibrator->running();
      return running.has_value() ? CalibrationState{true, running->probe.fraction}
                                 : CalibrationState{};
    });
    if (!plans_->has_profile()) {
      own_ = StartOwnCalibration(options_, calibrator_.get(), plans_.get(), log_, metrics_);
    }
  } else if (options_.calibrates_remotely() && !plans_->has_profile()) {
    remote_ = std::make_unique<RemoteCalibration>(
        RemoteCalibration::Options{options_.calibration, plans_->key().settings, options_.corpus,
                                   options_.calibration_credentials()},
        plans_.get(), store_.get(), Observers{log_, metrics_});
    metrics_->SetCalibrationState([remote = remote_.get()] { return remote->state(); });
  }
}

void DecodeProcess::Drain(std::chrono::steady_clock::time_point deadline) {
  decode_slot_.Close();
  calibration_slot_.Close();
  if (engine_ == nullptr) return;
  if (absl::Status status = engine_->Drain(deadline); !status.ok()) {
    log_->Warning("drain_incomplete", {{"error", status.message()}});
  }
}

void DecodeProcess::Stop() {
  metrics_->SetCalibrationState(nullptr);
  metrics_->SetEngineStats(nullptr);
  remote_.reset();
  own_.reset();
  if (engine_ != nullptr) engine_->Shutdown();
}

}  // namespace ripplekv
