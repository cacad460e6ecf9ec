#pragma once

#include <mutex>

#include "server/observe/metrics.h"
#include "server/rpc/health_service.h"

namespace ripplekv {

// Whether the process serves: told to health and metrics alike. Once closed it stays NOT_SERVING.
// Thread-safe.
class Readiness {
 public:
  // Both outlive this object.
  Readiness(HealthService* health, Metrics* metrics) : health_(health), metrics_(metrics) {
    metrics_->SetServing(false);
  }

  void Ready() {
    const std::lock_guard lock(mutex_);
    if (!closed_) Tell(true);
  }

  void Close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    Tell(false);
  }

  HealthService* health() const { return health_; }

 private:
  void Tell(bool serving) {
    health_->SetServing(serving);
    metrics_->SetServing(serving);
  }

  HealthService* const health_;
  Metrics* const metrics_;
  std::mutex mutex_;
  bool closed_ = false;
};

}  // namespace ripplekv
