#pragma once

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>

#include <chrono>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "server/address.h"

namespace ripplekv {

struct GrpcServerOptions {
  Address address;
  int64_t max_message_bytes = 0;
  bool reflection = false;
  std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
};

// A listening gRPC server.
class GrpcServer {
 public:
  // The services outlive the server. FAILED_PRECONDITION names the address where it is taken or not
  // of this machine.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(
      const GrpcServerOptions& options, const std::vector<grpc::Service*>& services);
  // Shutdown, without patience.
  ~GrpcServer();
  GrpcServer(const GrpcServer&) = delete;
  GrpcServer& operator=(const GrpcServer&) = delete;

  // With the port that was given, or found where it was 0.
  const Address& address() const { return address_; }

  // Takes no new calls, gives those that run until the deadline, cancels the rest. Repeatable.
  void Shutdown(std::chrono::system_clock::time_point deadline);

 private:
  GrpcServer(Address address, std::unique_ptr<grpc::Server> server)
      : address_(std::move(address)), server_(std::move(server)) {}

  Address address_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace ripplekv
