#include "server/rpc/calibrate_stream.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/rpc/allocator_convert.h"
#include "server/rpc/limits.h"
#include "server/rpc/profile_convert.h"
#include "server/rpc/settings_convert.h"
#include "server/rpc/status.h"

namespace ripplekv {
namespace {

constexpr char kCorpusType[] = "ripplekv.v1.Corpus";

// Where the request holds what the calibrator's error starts with: a text, the corpus's name or a
// setting.
absl::string_view PrefixOf(absl::string_view message) {
  if (absl::StartsWith(message, "texts")) return "corpus.texts.";
  if (absl::StartsWith(message, "name ")) return "corpus.";
  return "settings.";
}

}  // namespace

CalibrateStream::CalibrateStream(grpc::CallbackServerContext* context, const Observers& observers)
    : record_(context, observers, "CalibrateModel"), observers_(observers) {}

void CalibrateStream::Start(const std::shared_ptr<CalibrateStream>& stream,
                            const Slot<CalibrationBackend>& slot,
                            const v1::CalibrateModelRequest& request) {
  const absl::Status status = stream->Begin(stream, slot, request);
  if (status.ok()) return;
  const std::lock_guard lock(stream->mutex_);
  stream->End(ToGrpcStatus(status));
}

absl::Status CalibrateStream::Begin(const std::shared_ptr<CalibrateStream>& self,
                                    const Slot<CalibrationBackend>& slot,
                                    const v1::CalibrateModelRequest& request) {
  if (!record_.status().ok()) return record_.status();
  auto backend = slot.Get();
  if (!backend.ok()) return backend.status();
  backend_ = *std::move(backend);
  if (backend_->calibrator == nullptr)
    return absl::FailedPreconditionError(backend_->no_calibrator);

  CalibrationRequest calibration;
  const ModelConfig& model = backend_->model->config;
  const SettingsDefaults defaults = {.configured = backend_->plans->key().settings,
                                     .plan = backend_->plans->configured(),
                                     .parameters = backend_->defaults,
                                     .context_length = model.context_length};
  auto settings = RequestedSettings(request.settings(), defaults);
  if (!settings.ok()) return settings.status();
  calibration.settings = *std::move(settings);
  absl::Status valid = calibration.settings.Validate(model.context_length);
  if (!valid.ok()) return WithFieldPrefix("settings.", valid);
  valid = CheckOneALayer(calibration.settings.sizes.allocator, model.layers,
                         "settings.size_allocator.");
  if (!valid.ok()) return valid;
  switch (request.corpus().corpus_case()) {
    case v1::Corpus::kTexts: {
      const auto& texts = request.corpus().texts().texts();
      calibration.corpus = std::vector<std::string>(texts.begin(), texts.end());
      break;
    }
    case v1::Corpus::kName:
      // To the calibrator an empty name is the default corpus.
      if (request.corpus().name().empty()) {
        return InvalidField("corpus.name", "is empty: must be 1 to 64 of a-z, 0-9, '-' and '_'");
      }
      calibration.corpus = request.corpus().name();
      break;
    case v1::Corpus::CORPUS_NOT_SET:
      calibration.corpus = backend_->corpus;
      break;
  }
  calibration.force = request.force();
  calibration.detach = request.detach();

  // OnStarted, and OnDone for a stored profile, come within this call.
  absl::StatusOr<std::string> job_id = backend_->calibrator->Start(calibration, self);
  if (!job_id.ok()) {
    if (absl::IsResourceExhausted(job_id.status()))
      return WithRetryDelay(job_id.status(), kRetryDelay);
    if (absl::IsNotFound(job_id.status())) {
      return ResourceNotFound(kCorpusType, std::get<std::string>(calibration.corpus),
                              job_id.status().message());
    }
    return WithFieldPrefix(PrefixOf(job_id.status().message()), job_id.status());
  }
  bool cancelled = false;
  {
    const std::lock_guard lock(mutex_);
    job_id_ = *job_id;
    cancelled = cancelled_;
  }
  if (cancelled) Leave(*job_id);
  return absl::OkStatus();
}

void CalibrateStream::OnStarted(const CalibrationStarted& started) {
  observers_.log->Info(
      "calibration_started",
      record_.Fields({{"job_id", started.job_id},
                      {"profile_id", started.profile_id},
                      {"examples", started.settings.examples + started.settings.sizes.examples},
                      {"joined", started.joined}}));
  const std::lock_guard lock(mutex_);
  started_ = StartedToProto(started);
  Advance();
}

void CalibrateStream::OnProgress(const CalibrationProgress& progress) {
  const std::lock_guard lock(mutex_);
  progress_ = ProgressToProto(progress);
  Advance();
}

void CalibrateStream::OnDone(const absl::StatusOr<CalibrationResult>& result) {
  if (!result.ok()) {
    const std::lock_guard lock(mutex_);
    End(ToGrpcStatus(result.status()));
    return;
  }
  if (result->from_store) {
    observers_.metrics->OnCalibration("stored", 0);
    // A file that was put there since the start.
    if (!backend_->plans->InForce(result->profile.id())) backend_->plans->Adopt(result->profile);
  }
  v1::CalibrationComplete complete;
  *complete.mutable_profile() = ProfileToProto(result->profile, result->run);
  complete.set_from_store(result->from_store);
  complete.set_in_force(backend_->plans->InForce(result->profile.id()));
  const std::lock_guard lock(mutex_);
  complete_ = std::move(complete);
  End(grpc::Status::OK);
}

void CalibrateStream::OnCancel() {
  std::string job_id;
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    job_id = job_id_;
    End(grpc::Status(grpc::StatusCode::CANCELLED, "the caller left or its deadline passed"));
  }
  if (!job_id.empty()) Leave(job_id);
}

void CalibrateStream::Leave(const std::string& job_id) {
  backend_->calibrator->Leave(job_id, this);
}

bool CalibrateStream::TakeNext(v1::CalibrateModelResponse* message) {
  message->Clear();
  if (started_.has_value()) {
    *message->mutable_started() = *std::exchange(started_, std::nullopt);
  } else if (progress_.has_value()) {
    *message->mutable_progress() = *std::exchange(progress_, std::nullopt);
  } else if (complete_.has_value()) {
    *message->mutable_complete() = *std::exchange(complete_, std::nullopt);
  } else {
    return false;
  }
  return true;
}

void CalibrateStream::Ended(const grpc::Status& status) {
  record_.End(status.error_code(), status.error_message());
}

}  // namespace ripplekv
