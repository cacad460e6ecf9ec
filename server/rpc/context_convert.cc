#include "server/rpc/context_convert.h"

#include <algorithm>
#include <utility>

#include "server/rpc/kv_convert.h"
#include "server/rpc/prompt_convert.h"
#include "server/rpc/status.h"
#include "server/rpc/usage_convert.h"

namespace ripplekv {
namespace {

void TimeToProto(std::chrono::system_clock::time_point time, google::protobuf::Timestamp* proto) {
  const auto since = time.time_since_epoch();
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since);
  proto->set_seconds(seconds.count());
  proto->set_nanos(static_cast<int32_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(since - seconds).count()));
}

}  // namespace

absl::StatusOr<ContextRequest> ContextRequestFromProto(const v1::CreateContextRequest& proto,
                                                       const ModelInfo& model,
                                                       const PlanDefaults& defaults,
                                                       int32_t max_prompt_tokens) {
  ContextRequest request;
  absl::StatusOr<KvParams> kv = KvParamsFromProto(proto.kv(), defaults, KvUse::kPrefill);
  if (!kv.ok()) return kv.status();
  request.kv = *std::move(kv);
  absl::StatusOr<std::vector<int32_t>> prompt;
  switch (proto.prompt_case()) {
    case v1::CreateContextRequest::kText:
      prompt = TextToIds(model, "text", proto.text(), TextStart::kSequence, max_prompt_tokens);
      break;
    case v1::CreateContextRequest::kChat: {
      absl::StatusOr<std::vector<ChatMessage>> messages =
          MessagesFromProto(model, proto.chat(), max_prompt_tokens);
      if (!messages.ok()) return messages.status();
      request.chat = *std::move(messages);
      prompt = MessagesToIds(model, request.chat, /*opens_answer=*/false);
      break;
    }
    case v1::CreateContextRequest::kTokenIds:
      prompt = IdsFromProto("token_ids", proto.token_ids(), *model.tokenizer);
      break;
    case v1::CreateContextRequest::PROMPT_NOT_SET:
      return InvalidField("prompt", "is absent: must be text, chat or token_ids");
  }
  if (!prompt.ok()) return prompt.status();
  request.prompt = *std::move(prompt);
  return request;
}

void ContextToProto(const ContextInfo& context, std::chrono::milliseconds idle,
                    Clock::time_point now, std::chrono::system_clock::time_point wall_now,
                    v1::Context* proto) {
  proto->set_context_id(context.id);
  proto->set_tokens(static_cast<int32_t>(context.tokens));
  LayersToProto(context.layers, proto->mutable_layers());
  proto->set_kv_bytes(static_cast<int64_t>(context.kv_bytes));
  proto->set_full_kv_bytes(static_cast<int64_t>(context.full_kv_bytes));
  proto->set_page_bytes(static_cast<int64_t>(context.page_bytes));
  proto->set_users(static_cast<int32_t>(context.users));
  TimeToProto(context.created, proto->mutable_created_at());
  if (context.users == 0) {
    const auto unused = std::max(now - context.last_used, Clock::duration::zero());
    proto->set_idle_seconds(std::chrono::duration<double>(unused).count());
    if (idle.count() > 0) {
      TimeToProto(
          wall_now + std::chrono::duration_cast<std::chrono::system_clock::duration>(idle - unused),
          proto->mutable_expires_at());
    }
  }
  proto->set_chat(context.origin != nullptr && !context.origin->chat.empty());
  proto->set_profile_id(context.plan_profile_id);
}

}  // namespace ripplekv
