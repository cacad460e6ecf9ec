#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ripplekv/v1/decode.pb.h"
#include "server/engine/request.h"
#include "server/loaded_model.h"

namespace ripplekv {

// Whether BOS goes before a text (where the model says so): at a sequence's start only.
enum class TextStart { kSequence, kGoesOn };

// Token ids of raw text, in which special tokens are parsed. INVALID_ARGUMENT, naming `field`:
// empty, or so long that it must exceed max_tokens (0: no limit).
absl::StatusOr<std::vector<int32_t>> TextToIds(const ModelInfo& model, absl::string_view field,
                                               const std::string& text, TextStart start,
                                               int32_t max_tokens);

// INVALID_ARGUMENT: number of messages, unknown roles, or so much text that it must exceed
// max_tokens (0: no limit).
absl::StatusOr<std::vector<ChatMessage>> MessagesFromProto(const ModelInfo& model,
                                                           const v1::ChatPrompt& chat,
                                                           int32_t max_tokens);

// Token ids of messages rendered by the model's template. INVALID_ARGUMENT: the template refuses
// them; FAILED_PRECONDITION: no template; UNIMPLEMENTED: one that cannot be rendered. The last two
// offer raw text. `opens_answer`: with the opening of an assistant's answer.
absl::StatusOr<std::vector<int32_t>> MessagesToIds(const ModelInfo& model,
                                                   const std::vector<ChatMessage>& messages,
                                                   bool opens_answer);

// The messages of a prompt, with the opening of an answer.
absl::StatusOr<std::vector<int32_t>> ChatToIds(const ModelInfo& model, const v1::ChatPrompt& chat,
                                               int32_t max_tokens);

// INVALID_ARGUMENT names the id that is none, after `field`.
absl::StatusOr<std::vector<int32_t>> IdsFromProto(absl::string_view field,
                                                  const v1::TokenIdsPrompt& proto,
                                                  const Tokenizer& tokenizer);

// The prompt of a chat over a context that holds `origin`: what all messages together, rendered
// with the opening of an answer, have after the context's tokens. FAILED_PRECONDITION: the context
// was not made from a chat. INVALID_ARGUMENT: the template writes the longer chat another way.
absl::StatusOr<std::vector<int32_t>> ChatOverContext(const ModelInfo& model,
                                                     const v1::ChatPrompt& chat,
                                                     const ContextOrigin& origin,
                                                     int32_t max_tokens);

// The prompt of a GenerateRequest or ScoreRequest, over `context` or (null) none: decode.proto says
// what happens at the seam. An absent one is empty; whether it may be is the caller's to say.
template <typename Request>
absl::StatusOr<std::vector<int32_t>> PromptFromProto(const Request& proto, const ModelInfo& model,
                                                     const ContextOrigin* context,
                                                     int32_t max_tokens) {
  switch (proto.prompt_case()) {
    case Request::kText:
      return TextToIds(model, "text", proto.text(),
                       context == nullptr ? TextStart::kSequence : TextStart::kGoesOn, max_tokens);
    case Request::kChat:
      return context == nullptr ? ChatToIds(model, proto.chat(), max_tokens)
                                : ChatOverContext(model, proto.chat(), *context, max_tokens);
    case Request::kTokenIds:
      return IdsFromProto("token_ids", proto.token_ids(), *model.tokenizer);
    case Request::PROMPT_NOT_SET:
      break;
  }
  return std::vector<int32_t>();
}

}  // namespace ripplekv
