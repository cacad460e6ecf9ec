#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/request.h"

namespace ripplekv {

struct RequestLimits {
  int32_t vocab_size = 0;
  int32_t context_length = 0;     // prompt and output together
  int32_t max_prompt_tokens = 0;  // at most context_length - 1
};

/// INVALID_ARGUMENT naming the field as the API calls it, its value and its range.
absl::Status ValidateRequest(const GenerateRequest& request, const RequestLimits& limits);
absl::Status ValidateRequest(const ScoreRequest& request, const RequestLimits& limits);
absl::Status ValidateRequest(const ContextRequest& request, const RequestLimits& limits);

/// Tokens of the request's context; 0 where it has none.
int32_t ContextTokens(const std::shared_ptr<const ContextLease>& context);

/// Most tokens that a valid request generates: what it asks for, or the default clamped to what the
/// context leaves.
int32_t EffectiveMaxTokens(const GenerateRequest& request, const RequestLimits& limits);

}  // namespace ripplekv
