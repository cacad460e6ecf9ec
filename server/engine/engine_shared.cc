#include "server/engine/engine_shared.h"

#include "absl/strings/str_cat.h"

namespace ripplekv {

absl::Status EngineShared::WaitUntilIdle(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  if (idle_.wait_until(lock, deadline, [this] { return accepted_ == 0; })) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat(accepted_, " requests are still running"));
}

}  // namespace ripplekv
