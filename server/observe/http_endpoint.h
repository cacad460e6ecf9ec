#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/address.h"

namespace ripplekv {

// /metrics and /healthz over HTTP, on a few threads of its own. A connection that says
// nothing for two seconds is closed.
class HttpEndpoint {
 public:
  struct Handlers {
    std::function<std::string()> metrics;  // Prometheus text
    std::function<bool()> serving;         // /healthz: 200 "SERVING" or 503 "NOT_SERVING"
  };

  // Listens at once. FAILED_PRECONDITION names the address where it is taken or not of this
  // machine.
  static absl::StatusOr<std::unique_ptr<HttpEndpoint>> Start(const Address& address,
                                                             Handlers handlers);
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
