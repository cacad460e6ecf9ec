#pragma once

#include <grpc/health/v1/health.grpc.pb.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace ripplekv {

// grpc.health.v1: the state of each service and, under the empty name, of the server as a whole.
// Our own, as gRPC's built-in one says SERVING from the moment it listens. Thread-safe.
class HealthService final : public grpc::health::v1::Health::CallbackService {
 public:
  // Each service is NOT_SERVING at first.
  explicit HealthService(const std::vector<std::string>& services);
  ~HealthService() override;

  // All services and the server.
  void SetServing(bool serving);
  // Of the server as a whole.
  bool serving() const;
  // Ends every Watch: they would hold up the server's shutdown.
  void CloseWatches();

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::health::v1::HealthCheckRequest* request,
                                  grpc::health::v1::HealthCheckResponse* response) override;
  grpc::ServerWriteReactor<grpc::health::v1::HealthCheckResponse>* Watch(
      grpc::CallbackServerContext* context,
      const grpc::health::v1::HealthCheckRequest* request) override;

 private:
  class Watcher;
  struct State;
  std::shared_ptr<State> state_;  // watchers hold it too
};

}  // namespace ripplekv
