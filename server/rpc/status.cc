#include "server/rpc/status.h"

#include <google/rpc/error_details.pb.h>
#include <google/rpc/status.pb.h>

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/engine/request.h"
#include "server/rpc/limits.h"

namespace ripplekv {
namespace {

constexpr absl::string_view kTypePrefix = "type.googleapis.com/";

template <typename Detail>
std::string TypeUrl() {
  return absl::StrCat(kTypePrefix, Detail::descriptor()->full_name());
}

template <typename Detail>
void Attach(const Detail& detail, absl::Status& status) {
  status.SetPayload(TypeUrl<Detail>(), absl::Cord(detail.SerializeAsString()));
}

// The name that a message such as "sampling.top_p is 2: must be ..." starts with, else empty.
absl::string_view FieldOf(absl::string_view message) {
  const size_t end = message.find(' ');
  if (end == 0 || end == absl::string_view::npos) return {};
  const absl::string_view field = message.substr(0, end);
  if (field.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_.[]") !=
      absl::string_view::npos)
    return {};
  const absl::string_view rest = message.substr(end);
  for (const absl::string_view verb : {" is ", " has ", " names ", " of ", " + "}) {
    if (absl::StartsWith(rest, verb)) return field;
  }
  return {};
}

google::rpc::BadRequest Violation(absl::string_view field, absl::string_view description) {
  google::rpc::BadRequest bad;
  auto* violation = bad.add_field_violations();
  violation->set_field(std::string(field));
  violation->set_description(std::string(description));
  return bad;
}

google::rpc::RetryInfo Retry(std::chrono::milliseconds delay) {
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(delay.count() / 1000);
  retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(delay.count() % 1000) * 1'000'000);
  return retry;
}

}  // namespace

absl::Status InvalidField(absl::string_view field, absl::string_view problem) {
  absl::Status status = absl::InvalidArgumentError(absl::StrCat(field, " ", problem));
  Attach(Violation(field, status.message()), status);
  return status;
}

absl::Status WithFieldPrefix(absl::string_view prefix, const absl::Status& status) {
  if (!absl::IsInvalidArgument(status) || FieldOf(status.message()).empty()) return status;
  return absl::InvalidArgumentError(absl::StrCat(prefix, status.message()));
}

absl::Status WithRetryDelay(absl::Status status, std::chrono::milliseconds delay) {
  Attach(Retry(delay), status);
  return status;
}

absl::Status ResourceNotFound(absl::string_view type, absl::string_view name,
                              absl::string_view message) {
  absl::Status status = absl::NotFoundError(message);
  google::rpc::ResourceInfo resource;
  resource.set_resource_type(std::string(type));
  resource.set_resource_name(std::string(name));
  resource.set_description(std::string(message));
  Attach(resource, status);
  return status;
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  google::rpc::Status wire;
  wire.set_code(static_cast<int>(status.code()));
  wire.set_message(std::string(status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    if (!absl::StartsWith(url, kTypePrefix)) return;
    auto* any = wire.add_details();
    any->set_type_url(std::string(url));
    any->set_value(std::string(payload));
  });
  if (status.GetPayload(kRetryLater).has_value()) wire.add_details()->PackFrom(Retry(kRetryDelay));
  if (absl::IsInvalidArgument(status) && wire.details().empty()) {
    const absl::string_view field = FieldOf(status.message());
    if (!field.empty()) wire.add_details()->PackFrom(Violation(field, status.message()));
  }
  // absl's and gRPC's codes are the same numbers.
  const auto code = static_cast<grpc::StatusCode>(status.code());
  if (wire.details().empty()) return grpc::Status(code, wire.message());
  return grpc::Status(code, wire.message(), wire.SerializeAsString());
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace ripplekv
