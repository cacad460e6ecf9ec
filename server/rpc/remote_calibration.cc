#include "server/rpc/remote_calibration.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "client/credentials.h"
#include "client/handshake.h"
#include "server/backoff.h"
#include "server/rpc/settings_convert.h"
#include "server/rpc/status.h"

namespace ripplekv {
namespace {

constexpr std::chrono::milliseconds kFirstPause(500);
constexpr std::chrono::milliseconds kLongestPause(30'000);
constexpr std::chrono::seconds kAnswerTime(20);

grpc::ChannelArguments ChannelOptions() {
  grpc::ChannelArguments arguments;
  // A server that vanished without closing the connection is noticed within a minute.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  // This class decides how often to try.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, static_cast<int>(kFirstPause.count()));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, static_cast<int>(kFirstPause.count()));
  return arguments;
}

}  // namespace

RemoteCalibration::RemoteCalibration(Options options, PlanKeeper* plans, ProfileStore* store,
                                     const Observers& observers)
    : options_(std::move(options)),
      plans_(plans),
      store_(store),
      observers_(observers),
      wanted_id_(ProfileId(plans->key())),
      thread_([this] { Run(); }) {}

RemoteCalibration::~RemoteCalibration() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (context_ != nullptr) context_->TryCancel();
    changed_.notify_all();
  }
  thread_.join();
}

void RemoteCalibration::Run() {
  Backoff backoff(kFirstPause, kLongestPause);
  std::string last_error;
  do {
    const absl::Status status = FetchOnce();
    running_ = false;
    fraction_ = 0;
    if (status.ok()) return;
    std::string error(status.message());
    if (const std::string why = ExplainHandshake(options_.credentials.tls, error);
        absl::IsUnavailable(status) && !why.empty()) {
      absl::StrAppend(&error, ": ", why);
    }
    plans_->SetStatus(absl::StrCat("no profile from the calibration server at ", options_.address,
                                   " yet: ", error));
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
    observers_.metrics->OnProfileFetchFailure();
    // The same trouble again is no news.
    if (error != last_error) {
      observers_.log->Warning("calibration_server_failed",
                              {{"address", options_.address},
                               {"code", absl::StatusCodeToString(status.code())},
                               {"error", error}});
      last_error = error;
    }
    if (!Pause(backoff.Next())) return;
  } while (true);
}

absl::Status RemoteCalibration::Connect() {
  const absl::StatusOr<Credentials> credentials = ReadCredentials(options_.credentials);
  if (!credentials.ok()) return credentials.status();
  token_ = credentials->token;
  stub_ = v1::CalibrationService::NewStub(
      grpc::CreateCustomChannel(options_.address, credentials->channel(), ChannelOptions()));
  return absl::OkStatus();
}

absl::Status RemoteCalibration::FetchOnce() {
  if (absl::Status status = Connect(); !status.ok()) return status;
  absl::StatusOr<v1::Profile> profile = AskForStored();
  if (absl::IsNotFound(profile.status())) {
    // Somebody there did not want it measured: it is taken once it has been after all.
    if (!cancelled_.ok()) return cancelled_;
    profile = AskForMeasurement();
    if (absl::IsCancelled(profile.status())) cancelled_ = profile.status();
  }
  if (!profile.ok()) return profile.status();
  return Keep(*profile);
}

absl::StatusOr<v1::Profile> RemoteCalibration::AskForStored() {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kAnswerTime);
  if (!Enter(&context)) return absl::CancelledError("stopping");
  const absl::Cleanup leave = [this] { Leave(); };
  v1::GetProfileRequest request;
  request.set_profile_id(wanted_id_);
  v1::GetProfileResponse response;
  const grpc::Status status = stub_->GetProfile(&context, request, &response);
  if (!status.ok()) return FromGrpcStatus(status);
  return std::move(*response.mutable_profile());
}

absl::StatusOr<v1::Profile> RemoteCalibration::AskForMeasurement() {
  grpc::ClientContext context;  // measuring takes as long as it takes
  if (!Enter(&context)) return absl::CancelledError("stopping");
  const absl::Cleanup leave = [this] { Leave(); };
  v1::CalibrateModelRequest request;
  *request.mutable_settings() = SettingsToProto(options_.settings);
  request.mutable_corpus()->set_name(options_.corpus);
  const auto stream = stub_->CalibrateModel(&context, request);
  absl::StatusOr<v1::Profile> profile =
      absl::InternalError("the calibration server ended without a profile");
  v1::CalibrateModelResponse event;
  while (stream->Read(&event)) {
    if (event.has_started()) {
      if (event.started().profile_id() != wanted_id_) {
        context.TryCancel();
        profile = absl::FailedPreconditionError(absl::StrCat(
            "it would measure profile ", event.started().profile_id(), ", this server needs ",
            wanted_id_, ": both must have the same model file, --compute and corpus"));
        break;
      }
      observers_.log->Info("calibration_started", {{"address", options_.address},
                                                   {"job_id", event.started().job_id()},
                                                   {"profile_id", wanted_id_},
                                                   {"joined", event.started().joined()}});
      running_ = true;
      plans_->SetStatus(absl::StrCat("the calibration server at ", options_.address, " measures"));
    } else if (event.has_progress()) {
      const v1::CalibrationProgress& progress = event.progress();
      fraction_ = progress.fraction();
      plans_->SetStatus(absl::StrCat("the calibration server at ", options_.address,
                                     " measures: ", progress.examples_done(), " of ",
                                     progress.examples_total(), " examples"));
    } else if (event.has_complete()) {
      profile = std::move(*event.mutable_complete()->mutable_profile());
    }
  }
  // Even after an early end the call must be finished.
  const grpc::Status status = stream->Finish();
  if (!status.ok() && !absl::IsFailedPrecondition(profile.status())) return FromGrpcStatus(status);
  return profile;
}

absl::Status RemoteCalibration::Keep(const v1::Profile& proto) {
  absl::StatusOr<ProfileAndRun> received = ProfileFromProto(proto);
  if (!received.ok()) return received.status();
  const Profile& profile = received->profile;
  // The key holds fingerprint, compute type, settings and corpus.
  if (profile.key != plans_->key()) {
    return absl::FailedPreconditionError(
        absl::StrCat("it sent profile ", profile.id(), ", this server needs ", wanted_id_));
  }
  if (profile.layers != plans_->configured().layers) {
    return absl::DataLossError(absl::StrCat("its profile has ", profile.layers,
                                            " layers, the model has ",
                                            plans_->configured().layers));
  }
  if (absl::Status status = store_->Put(profile, received->run); !status.ok()) return status;
  if (!plans_->Adopt(profile)) {
    return absl::InternalError(absl::StrCat("no plan can be made from profile ", profile.id()));
  }
  observers_.metrics->OnCalibration("fetched", 0);
  observers_.log->Info("profile_fetched", {{"address", options_.address},
                                           {"profile_id", profile.id()},
                                           {"examples", profile.examples_computed}});
  return absl::OkStatus();
}

bool RemoteCalibration::Enter(grpc::ClientContext* context) {
  if (!token_.empty()) context->AddMetadata("authorization", absl::StrCat("Bearer ", token_));
  const std::lock_guard lock(mutex_);
  if (stopping_) return false;
  context_ = context;
  return true;
}

void RemoteCalibration::Leave() {
  const std::lock_guard lock(mutex_);
  context_ = nullptr;
}

bool RemoteCalibration::Pause(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, time, [this] { return stopping_; });
}

}  // namespace ripplekv
