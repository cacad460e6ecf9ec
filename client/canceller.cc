#include "client/canceller.h"

#include <grpcpp/client_context.h>

namespace ripplekv {

bool Canceller::Cancel() {
  std::lock_guard lock(mutex_);
  cancelled_ = true;
  if (running_ == nullptr) return false;
  running_->TryCancel();
  return true;
}

void Canceller::Reset() {
  std::lock_guard lock(mutex_);
  cancelled_ = false;
}

bool Canceller::cancelled() const {
  std::lock_guard lock(mutex_);
  return cancelled_;
}

RunningCall::RunningCall(Canceller* canceller, grpc::ClientContext* context)
    : canceller_(canceller) {
  if (canceller_ == nullptr) return;
  std::lock_guard lock(canceller_->mutex_);
  canceller_->running_ = context;
  // A call that has not started yet is cancelled as soon as it does.
  if (canceller_->cancelled_) context->TryCancel();
}

RunningCall::~RunningCall() {
  if (canceller_ == nullptr) return;
  std::lock_guard lock(canceller_->mutex_);
  canceller_->running_ = nullptr;
}

}  // namespace ripplekv
