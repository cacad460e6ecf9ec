#pragma once

#include <string>
#include <utility>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ripplekv/v1/decode.pb.h"

namespace ripplekv {

// What a model is asked: raw text, a chat, or token ids.
using Prompt = std::variant<std::string, v1::ChatPrompt, v1::TokenIdsPrompt>;

// One message that holds a document, a blank line and a question about it.
std::string DocumentQuestion(absl::string_view document, absl::string_view question);

// "user:What is a bar?" with a role of system, user or assistant. INVALID_ARGUMENT names what is
// wrong.
absl::StatusOr<v1::ChatMessage> ParseMessage(absl::string_view text);

// Request: one with a text, a chat or token ids (Generate, Score, CreateContext).
template <typename Request>
void SetPrompt(Prompt prompt, Request& request) {
  if (auto* text = std::get_if<std::string>(&prompt)) {
    request.set_text(std::move(*text));
  } else if (auto* chat = std::get_if<v1::ChatPrompt>(&prompt)) {
    *request.mutable_chat() = std::move(*chat);
  } else {
    *request.mutable_token_ids() = std::move(std::get<v1::TokenIdsPrompt>(prompt));
  }
}

// INVALID_ARGUMENT for token ids: they are tokens already.
absl::Status SetPrompt(Prompt prompt, v1::TokenizeRequest& request);

}  // namespace ripplekv
