#include "server/rpc/context_call.h"

#include <utility>

#include "server/engine/context_registry.h"
#include "server/rpc/call.h"
#include "server/rpc/context_convert.h"
#include "server/rpc/usage_convert.h"

namespace ripplekv {

ContextCall::ContextCall(grpc::CallbackServerContext* context, const Observers& observers,
                         const v1::CreateContextRequest& request,
                         v1::CreateContextResponse* response)
    : EngineCall(context, observers, "CreateContext", request.request_id()),
      context_(context),
      response_(response) {}

void ContextCall::Start(const std::shared_ptr<ContextCall>& call, const Slot<DecodeBackend>& slot,
                        const v1::CreateContextRequest& request) {
  call->EngineCall::Start(
      call, slot,
      [&](const DecodeBackend& backend) -> absl::StatusOr<std::shared_ptr<RequestHandle>> {
        if (backend.engine_options.context_memory_bytes == 0) {
          return absl::FailedPreconditionError(
              "this server keeps no contexts (--context-memory 0)");
        }
        absl::StatusOr<ContextRequest> converted = ContextRequestFromProto(
            request, *backend.model, backend.defaults, backend.engine->max_prompt_tokens());
        if (!converted.ok()) return converted.status();
        converted->id = call->record().request_id();
        converted->key = ContextKeyOf(*call->context_);
        converted->owner = call->record().caller();
        converted->deadline = DeadlineOf(*call->context_);
        return backend.engine->Submit(*std::move(converted), call);
      });
}

void ContextCall::OnComplete(ContextInfo context) {
  End(absl::OkStatus(),
      [&] {
        response_->set_request_id(record().request_id());
        ContextToProto(context, backend().engine_options.context_idle, Clock::now(),
                       std::chrono::system_clock::now(), response_->mutable_context());
      },
      {{"context_id", context.id},
       {"prompt_tokens", context.tokens},
       {"kept_positions", KeptPositions(context.layers)},
       {"kv_bytes", context.kv_bytes},
       {"full_kv_bytes", context.full_kv_bytes}});
}

}  // namespace ripplekv
