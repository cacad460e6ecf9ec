#include "model/chat_template.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "model/concat.h"
#include "model/template_parser.h"
#include "model/template_renderer.h"
#include "model/unicode.h"

namespace ripplekv {
namespace {

constexpr std::string_view kRoles[] = {"system", "user", "assistant"};
constexpr size_t kShownRoleBytes = 64;

absl::Status CheckMessages(absl::Span<const ChatMessage> messages) {
  if (messages.empty())
    return absl::InvalidArgumentError("messages is empty; expected at least one");
  for (size_t i = 0; i < messages.size(); ++i) {
    const auto& [role, content] = messages[i];
    if (std::find(std::begin(kRoles), std::end(kRoles), role) == std::end(kRoles)) {
      return absl::InvalidArgumentError(Concat("messages[", i, "].role is '",
                                               absl::CHexEscape(role.substr(0, kShownRoleBytes)),
                                               "'; allowed: system, user, assistant"));
    }
    if (const size_t at = FindInvalidUtf8(content); at != std::string_view::npos) {
      return absl::InvalidArgumentError(
          Concat("messages[", i, "].content is not valid UTF-8 at byte ", at));
    }
  }
  return absl::OkStatus();
}

Value MessageList(absl::Span<const ChatMessage> messages) {
  Value::List list;
  list.reserve(messages.size());
  for (const ChatMessage& message : messages) {
    Value::Mapping mapping;
    mapping.entries.emplace_back("role", Value(AuthoredText(message.role)));
    mapping.entries.emplace_back("content",
                                 Value(AuthoredText(message.content, /*from_user=*/true)));
    list.push_back(Value(std::move(mapping)));
  }
  return Value(std::move(list));
}

}  // namespace

struct ChatTemplate::Program {
  TemplateStatement::List statements;
  TokenTexts tokens;
  TemplateLimits limits;
};

ChatTemplate::ChatTemplate(std::shared_ptr<const Program> program) : program_(std::move(program)) {}

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(std::string_view source, TokenTexts tokens,
                                                 TemplateLimits limits) {
  if (source.size() > limits.template_bytes) {
    return absl::InvalidArgumentError(
        Concat("the chat template has ", source.size(), " bytes; at most ", limits.template_bytes));
  }
  if (const size_t at = FindInvalidUtf8(source); at != std::string_view::npos) {
    return absl::InvalidArgumentError(Concat("the chat template is not valid UTF-8 at byte ", at));
  }
  try {
    return ChatTemplate(std::make_shared<const Program>(
        Program{ParseTemplate(source, limits.depth), std::move(tokens), limits}));
  } catch (const TemplateError& error) {
    return error.status;
  }
}

absl::StatusOr<ChatTemplate> ChatTemplate::FromGguf(const GgufFile& file,
                                                    const Tokenizer& tokenizer) {
  if (!file.Has("tokenizer.chat_template")) {
    return absl::FailedPreconditionError(
        "the checkpoint has no chat template (tokenizer.chat_template); send the prompt as text or "
        "token_ids");
  }
  absl::StatusOr<std::string> source = file.GetString("tokenizer.chat_template");
  if (!source.ok()) return source.status();
  const auto text = [&](std::optional<int32_t> id) -> std::optional<std::string> {
    if (!id) return std::nullopt;
    return std::string(tokenizer.TokenBytes(*id));
  };
  return Parse(*source, {text(tokenizer.bos()), text(tokenizer.eos()), text(tokenizer.unknown()),
                         text(tokenizer.padding())});
}

absl::StatusOr<std::vector<TextSegment>> ChatTemplate::Render(
    absl::Span<const ChatMessage> messages, bool add_generation_prompt) const {
  if (absl::Status status = CheckMessages(messages); !status.ok()) return status;
  TemplateRenderer renderer(program_->limits);
  renderer.Set("messages", MessageList(messages));
  renderer.Set("add_generation_prompt", Value(add_generation_prompt));
  renderer.Set("tools", Value(Value::None{}));
  renderer.Set("documents", Value(Value::None{}));
  const TokenTexts& tokens = program_->tokens;
  for (const auto& [name, text] :
       {std::pair("bos_token", tokens.bos), std::pair("eos_token", tokens.eos),
        std::pair("unk_token", tokens.unknown), std::pair("pad_token", tokens.padding)}) {
    if (text) renderer.Set(name, Value(AuthoredText(*text)));
  }
  try {
    return renderer.Render(program_->statements).Segments();
  } catch (const TemplateError& error) {
    return error.status;
  }
}

}  // namespace ripplekv
