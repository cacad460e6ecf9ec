#pragma once

#include "absl/status/statusor.h"
#include "ripplekv/v1/decode.pb.h"
#include "server/engine/request.h"
#include "server/loaded_model.h"
#include "server/rpc/plan_convert.h"

namespace ripplekv {

// The engine's request, without id, deadline and context lease. `context`: what the context that it
// names was made from; null: none. INVALID_ARGUMENT names field, value and range.
// FAILED_PRECONDITION: an empty prompt without a context, and the model has no BOS token.
absl::StatusOr<ScoreRequest> ScoreRequestFromProto(const v1::ScoreRequest& proto,
                                                   const ModelInfo& model,
                                                   const PlanDefaults& defaults,
                                                   const ContextOrigin* context,
                                                   int32_t max_prompt_tokens);

void ScoreToProto(const ScoreResult& result, const Tokenizer& tokenizer, v1::ScoreResponse* proto);

}  // namespace ripplekv
