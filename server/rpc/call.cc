#include "server/rpc/call.h"

#include <algorithm>
#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/rpc/limits.h"
#include "server/rpc/status.h"

namespace ripplekv {
namespace {

absl::Status CheckRequestId(absl::string_view field, absl::string_view id) {
  bool plain = !id.empty() && id.size() <= kMaxRequestIdBytes;
  for (const char c : id) plain = plain && c > ' ' && c < 0x7f;
  if (plain) return absl::OkStatus();
  return InvalidField(
      field, absl::StrCat("is not a request id (", id.size(), " bytes): must be 1 to ",
                          kMaxRequestIdBytes, " printable ASCII characters without spaces"));
}

}  // namespace

absl::StatusOr<std::string> RequestIdOf(const grpc::CallbackServerContext& context,
                                        absl::string_view field) {
  if (!field.empty()) {
    if (absl::Status status = CheckRequestId("request_id", field); !status.ok()) return status;
    return std::string(field);
  }
  for (const char* key : {"x-request-id", "x-correlation-id"}) {
    const auto found = context.client_metadata().find(key);
    if (found == context.client_metadata().end()) continue;
    std::string id(found->second.data(), found->second.size());
    if (absl::Status status = CheckRequestId(key, id); !status.ok()) return status;
    return id;
  }
  return RandomId();
}

std::string RandomId() {
  thread_local std::mt19937_64 random([] {
    std::random_device device;
    return (uint64_t{device()} << 32) | device();
  }());
  return absl::StrFormat("%016x%016x", random(), random());
}

std::string ContextKeyOf(const grpc::CallbackServerContext& context) {
  const auto found = context.client_metadata().find("x-ripplekv-context");
  if (found == context.client_metadata().end()) return "";
  std::string key(found->second.data(), found->second.size());
  const auto fits = [](unsigned char c) { return absl::ascii_isalnum(c) || c == '-' || c == '_'; };
  if (key.size() > kMaxContextKeyBytes || !std::all_of(key.begin(), key.end(), fits)) return "";
  return key;
}

std::optional<std::chrono::steady_clock::time_point> DeadlineOf(
    const grpc::CallbackServerContext& context) {
  const auto deadline = context.deadline();
  const auto now = std::chrono::system_clock::now();
  // gRPC's "never" is the far future; the sum below must not overflow.
  if (deadline - now > std::chrono::hours(24 * 365)) return std::nullopt;
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(deadline - now);
}

}  // namespace ripplekv
