#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ripplekv/v1/decode.pb.h"
#include "server/engine/context_registry.h"

namespace ripplekv {

// What DecodeService answers about contexts. `caller` is whose the call is (Access): another's
// context is NOT_FOUND, exactly as one that never was.

// The context that a request names, pinned while the result lives; null where `id` is empty.
absl::StatusOr<std::shared_ptr<const ContextLease>> UseContext(ContextRegistry& contexts,
                                                               const std::string& caller,
                                                               const std::string& id);

// Null for null.
const ContextOrigin* OriginOf(const ContextLease* lease);

// `idle`: after which an unused context expires; zero: never.
absl::Status GetContext(ContextRegistry& contexts, std::chrono::milliseconds idle,
                        const std::string& caller, const v1::GetContextRequest& request,
                        v1::GetContextResponse* response);
absl::Status ListContexts(ContextRegistry& contexts, std::chrono::milliseconds idle,
                          const std::string& caller, const v1::ListContextsRequest& request,
                          v1::ListContextsResponse* response);
absl::Status DeleteContext(ContextRegistry& contexts, const std::string& caller,
                           const v1::DeleteContextRequest& request);

}  // namespace ripplekv
