#include "server/rpc/prompt_convert.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/rpc/limits.h"
#include "server/rpc/status.h"

namespace ripplekv {
namespace {

// Spares the tokenizer a text that cannot fit however it is cut.
absl::Status CheckBytes(const ModelInfo& model, absl::string_view field, size_t bytes,
                        int32_t max_tokens) {
  const size_t most = static_cast<size_t>(max_tokens) * model.longest_token_bytes;
  if (max_tokens == 0 || bytes <= most) return absl::OkStatus();
  return InvalidField(
      field, absl::StrCat("is ", bytes, " bytes: must be 1 to ", max_tokens, " tokens, and no ",
                          max_tokens, " tokens hold more than ", most, " bytes"));
}

absl::StatusOr<std::string> RoleName(int index, v1::Role role) {
  switch (role) {
    case v1::ROLE_SYSTEM:
      return "system";
    case v1::ROLE_USER:
      return "user";
    case v1::ROLE_ASSISTANT:
      return "assistant";
    default:
      return InvalidField(absl::StrCat("chat.messages[", index, "].role"),
                          absl::StrCat("is ", static_cast<int>(role),
                                       ": must be ROLE_SYSTEM, ROLE_USER or ROLE_ASSISTANT"));
  }
}

absl::Status NoTemplate(const absl::Status& why) {
  return absl::Status(why.code() == absl::StatusCode::kUnimplemented
                          ? why.code()
                          : absl::StatusCode::kFailedPrecondition,
                      absl::StrCat("chat: the model's chat template cannot be used (",
                                   why.message(), "); send the prompt as text or token_ids"));
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> TextToIds(const ModelInfo& model, absl::string_view field,
                                               const std::string& text, TextStart start,
                                               int32_t max_tokens) {
  if (text.empty()) return InvalidField(field, "is empty: must be at least 1 token");
  if (absl::Status status = CheckBytes(model, field, text.size(), max_tokens); !status.ok())
    return status;
  absl::StatusOr<std::vector<int32_t>> ids = model.tokenizer->Encode(text, SpecialTokens::kParse);
  if (!ids.ok())
    return InvalidField(field, absl::StrCat("cannot be encoded: ", ids.status().message()));
  if (start == TextStart::kSequence && model.tokenizer->add_bos() &&
      model.tokenizer->bos().has_value()) {
    ids->insert(ids->begin(), *model.tokenizer->bos());
  }
  return ids;
}

absl::StatusOr<std::vector<ChatMessage>> MessagesFromProto(const ModelInfo& model,
                                                           const v1::ChatPrompt& chat,
                                                           int32_t max_tokens) {
  if (chat.messages().empty() || chat.messages_size() > kMaxChatMessages) {
    return InvalidField(
        "chat.messages",
        absl::StrCat("has ", chat.messages_size(), " messages: must be 1 to ", kMaxChatMessages));
  }
  std::vector<ChatMessage> messages;
  size_t bytes = 0;
  for (int i = 0; i < chat.messages_size(); ++i) {
    absl::StatusOr<std::string> role = RoleName(i, chat.messages(i).role());
    if (!role.ok()) return role.status();
    messages.push_back({*std::move(role), chat.messages(i).content()});
    bytes += chat.messages(i).content().size();
  }
  if (absl::Status status = CheckBytes(model, "chat.messages", bytes, max_tokens); !status.ok())
    return status;
  return messages;
}

absl::StatusOr<std::vector<int32_t>> MessagesToIds(const ModelInfo& model,
                                                   const std::vector<ChatMessage>& messages,
                                                   bool opens_answer) {
  if (!model.chat_template.ok()) return NoTemplate(model.chat_template.status());
  absl::StatusOr<std::vector<TextSegment>> segments =
      model.chat_template->Render(messages, opens_answer);
  if (!segments.ok()) {
    if (absl::IsInvalidArgument(segments.status())) {
      return InvalidField("chat.messages",
                          absl::StrCat("cannot be rendered: ", segments.status().message()));
    }
    return NoTemplate(segments.status());
  }
  absl::StatusOr<std::vector<int32_t>> ids = model.tokenizer->EncodeSegments(*segments);
  if (!ids.ok())
    return InvalidField("chat.messages",
                        absl::StrCat("cannot be encoded: ", ids.status().message()));
  return ids;
}

absl::StatusOr<std::vector<int32_t>> ChatToIds(const ModelInfo& model, const v1::ChatPrompt& chat,
                                               int32_t max_tokens) {
  absl::StatusOr<std::vector<ChatMessage>> messages = MessagesFromProto(model, chat, max_tokens);
  if (!messages.ok()) return messages.status();
  return MessagesToIds(model, *messages, /*opens_answer=*/true);
}

absl::StatusOr<std::vector<int32_t>> IdsFromProto(absl::string_view field,
                                                  const v1::TokenIdsPrompt& proto,
                                                  const Tokenizer& tokenizer) {
  for (int i = 0; i < proto.ids_size(); ++i) {
    if (tokenizer.Contains(proto.ids(i))) continue;
    return InvalidField(absl::StrCat(field, ".ids[", i, "]"),
                        absl::StrCat("is ", proto.ids(i), ": must be a token id in [0, ",
                                     tokenizer.vocab_size() - 1, "]"));
  }
  return std::vector<int32_t>(proto.ids().begin(), proto.ids().end());
}

absl::StatusOr<std::vector<int32_t>> ChatOverContext(const ModelInfo& model,
                                                     const v1::ChatPrompt& chat,
                                                     const ContextOrigin& origin,
                                                     int32_t max_tokens) {
  if (origin.chat.empty()) {
    return absl::FailedPreconditionError(
        "chat: the context was not made from a chat, so no messages can go on from it; send the "
        "prompt as text or token_ids");
  }
  absl::StatusOr<std::vector<ChatMessage>> more = MessagesFromProto(model, chat, max_tokens);
  if (!more.ok()) return more.status();
  std::vector<ChatMessage> messages = origin.chat;
  messages.insert(messages.end(), more->begin(), more->end());
  absl::StatusOr<std::vector<int32_t>> ids = MessagesToIds(model, messages, /*opens_answer=*/true);
  if (!ids.ok()) return ids;
  const auto [differs, _] =
      std::mismatch(origin.tokens.begin(), origin.tokens.end(), ids->begin(), ids->end());
  if (differs != origin.tokens.end()) {
    return InvalidField(
        "chat.messages",
        absl::StrCat("does not go on from the context: with these messages the model's chat "
                     "template writes the context's own another way, from token ",
                     differs - origin.tokens.begin(), " of ", origin.tokens.size(),
                     "; send the prompt as text or token_ids"));
  }
  ids->erase(ids->begin(), ids->begin() + static_cast<std::ptrdiff_t>(origin.tokens.size()));
  return ids;
}

}  // namespace ripplekv
