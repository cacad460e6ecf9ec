#include "client/prompt.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace ripplekv {

std::string DocumentQuestion(absl::string_view document, absl::string_view question) {
  return absl::StrCat(absl::StripAsciiWhitespace(document), "\n\n",
                      absl::StripAsciiWhitespace(question));
}

absl::StatusOr<v1::ChatMessage> ParseMessage(absl::string_view text) {
  const size_t colon = text.find(':');
  const absl::string_view role = text.substr(0, colon == absl::string_view::npos ? 0 : colon);
  v1::ChatMessage message;
  if (role == "system") {
    message.set_role(v1::ROLE_SYSTEM);
  } else if (role == "user") {
    message.set_role(v1::ROLE_USER);
  } else if (role == "assistant") {
    message.set_role(v1::ROLE_ASSISTANT);
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("message '", text.substr(0, 40), text.size() > 40 ? "..." : "",
                     "' does not start with system:, user: or assistant:"));
  }
  message.set_content(std::string(text.substr(colon + 1)));
  return message;
}

absl::Status SetPrompt(Prompt prompt, v1::TokenizeRequest& request) {
  if (auto* text = std::get_if<std::string>(&prompt)) {
    request.set_text(std::move(*text));
  } else if (auto* chat = std::get_if<v1::ChatPrompt>(&prompt)) {
    *request.mutable_chat() = std::move(*chat);
  } else {
    return absl::InvalidArgumentError("token ids are tokens already: give a text");
  }
  return absl::OkStatus();
}

}  // namespace ripplekv
