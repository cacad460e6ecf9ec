#pragma once

#include "absl/status/statusor.h"
#include "ripplekv/v1/decode.pb.h"
#include "server/engine/request.h"
#include "server/loaded_model.h"
#include "server/rpc/plan_convert.h"

namespace ripplekv {

// The engine's request, without id, deadline and context lease. `context`: what the context that it
// names was made from; null: none. Checks what only the message can get wrong
// (presence, enums, prompt form) and what its own types would hide; the engine checks all ranges.
// INVALID_ARGUMENT names field, value and range.
absl::StatusOr<GenerateRequest> RequestFromProto(const v1::GenerateRequest& proto,
                                                 const ModelInfo& model,
                                                 const PlanDefaults& defaults,
                                                 const ContextOrigin* context,
                                                 int32_t max_prompt_tokens);

void ChunkToProto(TokenChunk chunk, const Tokenizer& tokenizer, v1::GenerateChunk* proto);
void CompletionToProto(const Completion& completion, v1::GenerateComplete* proto);

}  // namespace ripplekv
