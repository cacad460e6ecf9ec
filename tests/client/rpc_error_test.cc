#include "client/rpc_error.h"

#include <gmock/gmock.h>
#include <google/rpc/error_details.pb.h>
#include <google/rpc/status.pb.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ripplekv {
namespace {

using testing::HasSubstr;
using testing::Not;

grpc::Status WithDetails(grpc::StatusCode code, const std::string& message,
                         const std::vector<const google::protobuf::Message*>& details) {
  google::rpc::Status wire;
  wire.set_code(code);
  wire.set_message(message);
  for (const auto* detail : details) wire.add_details()->PackFrom(*detail);
  return grpc::Status(code, message, wire.SerializeAsString());
}

google::rpc::BadRequest Violations() {
  google::rpc::BadRequest bad;
  for (const char* field : {"sampling.top_p", "stopping.max_tokens"}) {
    auto* violation = bad.add_field_violations();
    violation->set_field(field);
    violation->set_description(std::string(field) + " is 7: out of range");
  }
  return bad;
}

TEST(RpcErrorTest, EveryCodeKeepsItsNumber) {
  for (int code = 1; code <= 16; ++code) {
    EXPECT_EQ(static_cast<int>(
                  FromRpc(grpc::Status(static_cast<grpc::StatusCode>(code), "m"), "").code()),
              code);
  }
  EXPECT_TRUE(FromRpc(grpc::Status::OK, "id").ok());
}

TEST(RpcErrorTest, DetailsAreDecodedAndShown) {
  const google::rpc::BadRequest bad = Violations();
  const absl::Status status = FromRpc(
      WithDetails(grpc::INVALID_ARGUMENT, "sampling.top_p is 7: out of range", {&bad}), "req-1");
  const RpcErrorDetails details = DetailsOf(status);
  ASSERT_EQ(details.field_violations.size(), 2u);
  EXPECT_EQ(details.field_violations[1].field, "stopping.max_tokens");
  EXPECT_EQ(details.request_id, "req-1");
  // What the message says already is not said again.
  EXPECT_EQ(ErrorText(status),
            "INVALID_ARGUMENT: sampling.top_p is 7: out of range\n"
            "  stopping.max_tokens is 7: out of range\n"
            "  request id: req-1");
  const auto json = nlohmann::json::parse(ErrorJson(status));
  EXPECT_EQ(json["error"]["code"], "INVALID_ARGUMENT");
  EXPECT_EQ(json["error"]["field_violations"][0]["field"], "sampling.top_p");
  EXPECT_EQ(json["error"]["request_id"], "req-1");
  EXPECT_FALSE(json["error"].contains("retry_delay_seconds"));
}

TEST(RpcErrorTest, RetryDelayResourceAndTheServersOwnRequestId) {
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(1);
  retry.mutable_retry_delay()->set_nanos(500'000'000);
  google::rpc::ResourceInfo resource;
  resource.set_resource_type("profile");
  resource.set_resource_name("abc");
  google::rpc::RequestInfo request;
  request.set_request_id("theirs");
  const absl::Status status = FromRpc(
      WithDetails(grpc::RESOURCE_EXHAUSTED, "the queue is full", {&retry, &resource, &request}),
      "ours");
  EXPECT_EQ(ErrorText(status),
            "RESOURCE_EXHAUSTED: the queue is full\n  try again in 1.5 s\n  request id: theirs");
  const auto json = nlohmann::json::parse(ErrorJson(status))["error"];
  EXPECT_EQ(json["retry_delay_seconds"], 1.5);
  EXPECT_EQ(json["resource_type"], "profile");
  EXPECT_EQ(json["resource_name"], "abc");
}

TEST(RpcErrorTest, BrokenDetailsAndMessagesDoNoHarm) {
  const absl::Status broken =
      FromRpc(grpc::Status(grpc::INTERNAL, "", "\xFF\xFF not a status"), "");
  EXPECT_EQ(ErrorText(broken), "INTERNAL: no message");
  const absl::Status bytes = FromRpc(grpc::Status(grpc::INTERNAL, "bad \xFF byte"), "");
  EXPECT_EQ(nlohmann::json::parse(ErrorJson(bytes))["error"]["message"], "bad \uFFFD byte");
  EXPECT_THAT(ErrorJson(bytes), Not(HasSubstr("\n")));
}

}  // namespace
}  // namespace ripplekv
