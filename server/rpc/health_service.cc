#include "server/rpc/health_service.h"

#include <mutex>
#include <set>

#include "absl/strings/str_cat.h"
#include "model/unicode.h"
#include "server/rpc/status.h"
#include "server/rpc/stream_reactor.h"

namespace ripplekv {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

struct HealthService::State {
  mutable std::mutex mutex;
  std::map<std::string, HealthCheckResponse::ServingStatus> services;
  std::set<std::shared_ptr<Watcher>> watchers;
  bool closed = false;
};

// One Watch call: sends the state whenever it differs from the last one sent.
class HealthService::Watcher final : public StreamReactor<HealthCheckResponse> {
 public:
  Watcher(std::shared_ptr<State> state, std::string service)
      : state_(std::move(state)), service_(std::move(service)) {}

  const std::string& service() const { return service_; }

  void Tell(HealthCheckResponse::ServingStatus status) {
    const std::lock_guard lock(mutex_);
    status_ = status;
    Advance();
  }

  void Close() {
    const std::lock_guard lock(mutex_);
    End(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server is shutting down"));
  }

  void OnCancel() override {
    const std::lock_guard lock(mutex_);
    End(grpc::Status::CANCELLED);
  }

 private:
  bool TakeNext(HealthCheckResponse* message) override {
    if (status_ == sent_) return false;
    sent_ = status_;
    message->set_status(status_);
    return true;
  }

  void Ended(const grpc::Status&) override {
    const std::lock_guard lock(state_->mutex);
    for (auto it = state_->watchers.begin(); it != state_->watchers.end(); ++it) {
      if (it->get() == this) {
        state_->watchers.erase(it);
        break;
      }
    }
  }

  const std::shared_ptr<State> state_;
  const std::string service_;
  HealthCheckResponse::ServingStatus status_ = HealthCheckResponse::UNKNOWN;
  HealthCheckResponse::ServingStatus sent_ = HealthCheckResponse::UNKNOWN;
};

HealthService::HealthService(const std::vector<std::string>& services)
    : state_(std::make_shared<State>()) {
  state_->services[""] = HealthCheckResponse::NOT_SERVING;
  for (const std::string& service : services)
    state_->services[service] = HealthCheckResponse::NOT_SERVING;
}

HealthService::~HealthService() = default;

void HealthService::SetServing(bool serving) {
  const std::lock_guard lock(state_->mutex);
  const auto status = serving ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
  for (auto& [name, current] : state_->services) current = status;
  for (const auto& watcher : state_->watchers) {
    if (state_->services.contains(watcher->service())) watcher->Tell(status);
  }
}

bool HealthService::serving() const {
  const std::lock_guard lock(state_->mutex);
  return state_->services.at("") == HealthCheckResponse::SERVING;
}

void HealthService::CloseWatches() {
  const std::lock_guard lock(state_->mutex);
  state_->closed = true;
  for (const auto& watcher : state_->watchers) watcher->Close();
}

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context,
                                               const HealthCheckRequest* request,
                                               HealthCheckResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->services.find(request->service());
  if (found == state_->services.end()) {
    const std::string name = Excerpt(request->service());
    reactor->Finish(ToGrpcStatus(
        ResourceNotFound("grpc.Service", name, absl::StrCat("no service '", name, "' here"))));
  } else {
    response->set_status(found->second);
    reactor->Finish(grpc::Status::OK);
  }
  return reactor;
}

grpc::ServerWriteReactor<HealthCheckResponse>* HealthService::Watch(
    grpc::CallbackServerContext*, const HealthCheckRequest* request) {
  auto watcher = std::make_shared<Watcher>(state_, request->service());
  watcher->KeepUntilDone(watcher);
  const std::lock_guard lock(state_->mutex);
  state_->watchers.insert(watcher);
  const auto found = state_->services.find(request->service());
  watcher->Tell(found == state_->services.end() ? HealthCheckResponse::SERVICE_UNKNOWN
                                                : found->second);
  if (state_->closed) watcher->Close();
  return watcher.get();
}

}  // namespace ripplekv
