#include "client/rpc_error.h"

#include <google/rpc/error_details.pb.h>
#include <google/rpc/status.pb.h>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace ripplekv {
namespace {

template <typename Detail>
std::string TypeUrl() {
  return absl::StrCat("type.googleapis.com/", Detail::descriptor()->full_name());
}

template <typename Detail>
std::optional<Detail> DetailOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(TypeUrl<Detail>());
  Detail detail;
  if (!payload || !detail.ParseFromString(std::string(*payload))) return std::nullopt;
  return detail;
}

}  // namespace

absl::Status FromRpc(const grpc::Status& status, absl::string_view request_id) {
  if (status.ok()) return absl::OkStatus();
  // gRPC's and absl's codes are the same numbers.
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  google::rpc::Status wire;
  if (!status.error_details().empty() && wire.ParseFromString(status.error_details())) {
    for (const auto& detail : wire.details()) {
      result.SetPayload(detail.type_url(), absl::Cord(detail.value()));
    }
  }
  if (!request_id.empty() && !result.GetPayload(TypeUrl<google::rpc::RequestInfo>())) {
    google::rpc::RequestInfo info;
    info.set_request_id(std::string(request_id));
    result.SetPayload(TypeUrl<google::rpc::RequestInfo>(), absl::Cord(info.SerializeAsString()));
  }
  return result;
}

RpcErrorDetails DetailsOf(const absl::Status& status) {
  RpcErrorDetails details;
  if (const auto bad_request = DetailOf<google::rpc::BadRequest>(status)) {
    for (const auto& violation : bad_request->field_violations()) {
      details.field_violations.push_back({violation.field(), violation.description()});
    }
  }
  if (const auto retry = DetailOf<google::rpc::RetryInfo>(status)) {
    details.retry_delay_seconds =
        static_cast<double>(retry->retry_delay().seconds()) + retry->retry_delay().nanos() * 1e-9;
  }
  if (const auto resource = DetailOf<google::rpc::ResourceInfo>(status)) {
    details.resource_type = resource->resource_type();
    details.resource_name = resource->resource_name();
  }
  if (const auto info = DetailOf<google::rpc::RequestInfo>(status)) {
    details.request_id = info->request_id();
  }
  return details;
}

std::string ErrorText(const absl::Status& status) {
  const RpcErrorDetails details = DetailsOf(status);
  std::string text = absl::StrCat(absl::StatusCodeToString(status.code()), ": ",
                                  status.message().empty() ? "no message" : status.message());
  for (const auto& violation : details.field_violations) {
    if (absl::StrContains(status.message(), violation.description)) continue;
    absl::StrAppend(&text, "\n  ",
                    absl::StartsWith(violation.description, violation.field)
                        ? violation.description
                        : absl::StrCat(violation.field, ": ", violation.description));
  }
  if (details.retry_delay_seconds) {
    absl::StrAppend(&text, "\n  try again in ", *details.retry_delay_seconds, " s");
  }
  if (!details.request_id.empty()) absl::StrAppend(&text, "\n  request id: ", details.request_id);
  return text;
}

std::string ErrorJson(const absl::Status& status) {
  const RpcErrorDetails details = DetailsOf(status);
  nlohmann::ordered_json error;
  error["code"] = absl::StatusCodeToString(status.code());
  error["message"] = std::string(status.message());
  for (const auto& violation : details.field_violations) {
    error["field_violations"].push_back(
        {{"field", violation.field}, {"description", violation.description}});
  }
  if (details.retry_delay_seconds) error["retry_delay_seconds"] = *details.retry_delay_seconds;
  if (!details.resource_type.empty()) error["resource_type"] = details.resource_type;
  if (!details.resource_name.empty()) error["resource_name"] = details.resource_name;
  if (!details.request_id.empty()) error["request_id"] = details.request_id;
  // A message need not be UTF-8; bytes that are not become U+FFFD.
  return nlohmann::ordered_json{{"error", error}}.dump(
      -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace ripplekv
