#include "server/rpc/decode_backend.h"

#include "absl/strings/str_cat.h"

namespace ripplekv {

absl::StatusOr<std::shared_ptr<const DecodeBackend>> ServingBackend(
    const Slot<DecodeBackend>& slot) {
  auto backend = slot.Get();
  if (!backend.ok()) return backend.status();
  if ((*backend)->wait_for_profile && !(*backend)->plans->has_profile()) {
    return absl::UnavailableError(absl::StrCat(
        "waiting for a sensitivity profile (--wait-for-profile): ", (*backend)->plans->status()));
  }
  return backend;
}

}  // namespace ripplekv
