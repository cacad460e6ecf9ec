#include "server/rpc/context_queries.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/rpc/context_convert.h"
#include "server/rpc/limits.h"
#include "server/rpc/status.h"

namespace ripplekv {
namespace {

constexpr char kContextType[] = "ripplekv.v1.Context";
constexpr size_t kMaxIdBytes = 128;  // none is longer; so that an error does not repeat a novel

absl::Status CheckId(const std::string& id) {
  if (id.empty()) return InvalidField("context_id", "is empty: must be the id of a context");
  if (id.size() <= kMaxIdBytes) return absl::OkStatus();
  return InvalidField("context_id",
                      absl::StrCat("is ", id.size(), " bytes: must be 1 to ", kMaxIdBytes));
}

// One answer for contexts that never were, are gone, or are another caller's.
absl::Status NotFound(const std::string& id) {
  return ResourceNotFound(
      kContextType, id,
      absl::StrCat("there is no context '", id,
                   "' (any more): contexts that nobody uses expire, or make room for others; make "
                   "it again with CreateContext"));
}

absl::Status Told(const absl::Status& status, const std::string& id) {
  return absl::IsNotFound(status) ? NotFound(id) : status;
}

void Answer(const ContextInfo& context, std::chrono::milliseconds idle, v1::Context* proto) {
  ContextToProto(context, idle, Clock::now(), std::chrono::system_clock::now(), proto);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const ContextLease>> UseContext(ContextRegistry& contexts,
                                                               const std::string& caller,
                                                               const std::string& id) {
  if (id.empty()) return std::shared_ptr<const ContextLease>();
  if (absl::Status status = CheckId(id); !status.ok()) return status;
  absl::StatusOr<ContextLease> lease = contexts.Use(caller, id, Clock::now());
  if (!lease.ok()) return Told(lease.status(), id);
  return std::make_shared<const ContextLease>(*std::move(lease));
}

const ContextOrigin* OriginOf(const ContextLease* lease) {
  return lease == nullptr ? nullptr : lease->info().origin.get();
}

absl::Status GetContext(ContextRegistry& contexts, std::chrono::milliseconds idle,
                        const std::string& caller, const v1::GetContextRequest& request,
                        v1::GetContextResponse* response) {
  if (absl::Status status = CheckId(request.context_id()); !status.ok()) return status;
  const absl::StatusOr<ContextInfo> context = contexts.Get(caller, request.context_id());
  if (!context.ok()) return Told(context.status(), request.context_id());
  Answer(*context, idle, response->mutable_context());
  return absl::OkStatus();
}

absl::Status ListContexts(ContextRegistry& contexts, std::chrono::milliseconds idle,
                          const std::string& caller, const v1::ListContextsRequest& request,
                          v1::ListContextsResponse* response) {
  if (request.page_size() < 0 || request.page_size() > kMaxPageSize) {
    return InvalidField("page_size",
                        absl::StrCat("is ", request.page_size(), ": must be 0 to ", kMaxPageSize));
  }
  if (request.page_token().size() > kMaxIdBytes) {
    return InvalidField("page_token", absl::StrCat("is ", request.page_token().size(),
                                                   " bytes: must be empty or a next_page_token of "
                                                   "an earlier answer"));
  }
  const int size = request.page_size() == 0 ? kDefaultPageSize : request.page_size();
  // The last id of the page before; one more than a page tells whether there is another.
  const std::vector<ContextInfo> found = contexts.List(caller, request.page_token(), size + 1);
  for (const ContextInfo& context : found) {
    if (response->contexts_size() == size) {
      response->set_next_page_token(response->contexts(size - 1).context_id());
      break;
    }
    Answer(context, idle, response->add_contexts());
  }
  return absl::OkStatus();
}

absl::Status DeleteContext(ContextRegistry& contexts, const std::string& caller,
                           const v1::DeleteContextRequest& request) {
  if (absl::Status status = CheckId(request.context_id()); !status.ok()) return status;
  return Told(contexts.Delete(caller, request.context_id()), request.context_id());
}

}  // namespace ripplekv
