#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/address.h"

namespace ripplekv {

// /metrics and /healthz over HTTP, on a thread of its own: one request a connection, GET and HEAD
// only. Connections that say little or nothing, however many, hold up neither others nor the end.
class HttpEndpoint {
 public:
  struct Handlers {
    std::function<std::string()> metrics;  // Prometheus text
    std::function<bool()> serving;         // /healthz: 200 "SERVING" or 503 "NOT_SERVING"
  };

  // Listens at once. A connection is closed `connection_time` after it came, answered or not.
  // FAILED_PRECONDITION names the address where it is taken or not of this machine.
  static absl::StatusOr<std::unique_ptr<HttpEndpoint>> Start(
      const Address& address, Handlers handlers,
      std::chrono::milliseconds connection_time = std::chrono::seconds(5));
  ~HttpEndpoint();
  HttpEndpoint(const HttpEndpoint&) = delete;
  HttpEndpoint& operator=(const HttpEndpoint&) = delete;

  // With the port that was given, or found where it was 0.
  const Address& address() const { return address_; }

 private:
  class Impl;
  HttpEndpoint(Address address, std::unique_ptr<Impl> impl);

  Address address_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ripplekv
