#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "ripplekv/v1/decode.pb.h"
#include "server/loaded_model.h"

namespace ripplekv {

// Token ids of raw text: special tokens are parsed, BOS is added where the model says so.
// INVALID_ARGUMENT: empty, or so long that it must exceed max_tokens (0: no limit).
absl::StatusOr<std::vector<int32_t>> TextToIds(const ModelInfo& model, const std::string& text,
                                               int32_t max_tokens);

// Token ids of a chat rendered by the model's template. INVALID_ARGUMENT: number of messages,
// unknown roles, length; FAILED_PRECONDITION: no template; UNIMPLEMENTED: one that cannot be
// rendered. Both offer raw text.
absl::StatusOr<std::vector<int32_t>> ChatToIds(const ModelInfo& model, const v1::ChatPrompt& chat,
                                               int32_t max_tokens);

}  // namespace ripplekv
