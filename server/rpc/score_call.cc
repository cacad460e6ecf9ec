#include "server/rpc/score_call.h"

#include <utility>

#include "server/rpc/call.h"
#include "server/rpc/context_queries.h"
#include "server/rpc/score_convert.h"
#include "server/rpc/usage_convert.h"

namespace ripplekv {

ScoreCall::ScoreCall(grpc::CallbackServerContext* context, const Observers& observers,
                     const v1::ScoreRequest& request, v1::ScoreResponse* response)
    : EngineCall(context, observers, "Score", request.request_id()),
      context_(context),
      response_(response) {}

void ScoreCall::Start(const std::shared_ptr<ScoreCall>& call, const Slot<DecodeBackend>& slot,
                      const v1::ScoreRequest& request) {
  call->EngineCall::Start(
      call, slot,
      [&](const DecodeBackend& backend) -> absl::StatusOr<std::shared_ptr<RequestHandle>> {
        auto context =
            UseContext(backend.engine->contexts(), call->record().caller(), request.context_id());
        if (!context.ok()) return context.status();
        absl::StatusOr<ScoreRequest> converted =
            ScoreRequestFromProto(request, *backend.model, backend.defaults,
                                  OriginOf(context->get()), backend.engine->max_prompt_tokens());
        if (!converted.ok()) return converted.status();
        converted->id = call->record().request_id();
        converted->context = *std::move(context);
        converted->deadline = DeadlineOf(*call->context_);
        return backend.engine->Submit(*std::move(converted), call);
      });
}

void ScoreCall::OnComplete(ScoreResult result) {
  End(absl::OkStatus(),
      [&] {
        response_->set_request_id(record().request_id());
        ScoreToProto(result, *backend().model->tokenizer, response_);
      },
      {{"prompt_tokens", result.usage.prompt_tokens},
       {"context_tokens", result.usage.context_tokens},
       {"kept_positions", KeptPositions(result.cache.layers)},
       {"continuations", result.continuations.size()},
       {"output_tokens", result.usage.completion_tokens},
       {"queue_seconds", result.timings.queue_seconds},
       {"prefill_seconds", result.timings.prefill_seconds},
       {"decode_seconds", result.timings.decode_seconds}});
}

}  // namespace ripplekv
