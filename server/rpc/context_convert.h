#pragma once

#include <chrono>

#include "absl/status/statusor.h"
#include "ripplekv/v1/decode.pb.h"
#include "server/engine/context_registry.h"
#include "server/engine/request.h"
#include "server/loaded_model.h"
#include "server/rpc/plan_convert.h"

namespace ripplekv {

// The engine's request, without id, owner and deadline. INVALID_ARGUMENT names field, value and
// range.
absl::StatusOr<ContextRequest> ContextRequestFromProto(const v1::CreateContextRequest& proto,
                                                       const ModelInfo& model,
                                                       const PlanDefaults& defaults,
                                                       int32_t max_prompt_tokens);

// `idle`: after which a context that nobody uses expires; zero: never. `now` and `wall_now` are the
// same moment on both clocks.
void ContextToProto(const ContextInfo& context, std::chrono::milliseconds idle,
                    Clock::time_point now, std::chrono::system_clock::time_point wall_now,
                    v1::Context* proto);

}  // namespace ripplekv
