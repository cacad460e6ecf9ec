#include "server/rpc/status.h"

#include <gmock/gmock.h>
#include <google/rpc/error_details.pb.h>
#include <google/rpc/status.pb.h>
#include <gtest/gtest.h>

#include "server/engine/request.h"

namespace ripplekv {
namespace {

google::rpc::Status DetailsOf(const grpc::Status& status) {
  google::rpc::Status details;
  EXPECT_TRUE(details.ParseFromString(status.error_details()));
  return details;
}

google::rpc::BadRequest BadRequestOf(const grpc::Status& status) {
  google::rpc::BadRequest bad;
  const google::rpc::Status details = DetailsOf(status);
  if (details.details_size() == 1) {
    EXPECT_TRUE(details.details(0).UnpackTo(&bad));
  }
  return bad;
}

TEST(ToGrpcStatus, KeepsCodeAndMessage) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  const grpc::Status status = ToGrpcStatus(absl::UnavailableError("later"));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), "later");
  EXPECT_EQ(status.error_details(), "");
  EXPECT_EQ(FromGrpcStatus(status), absl::UnavailableError("later"));
}

TEST(ToGrpcStatus, CarriesFieldViolations) {
  const grpc::Status status =
      ToGrpcStatus(InvalidField("sampling.top_p", "is 2: must be above 0 to 1"));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "sampling.top_p is 2: must be above 0 to 1");
  const google::rpc::Status details = DetailsOf(status);
  EXPECT_EQ(details.code(), 3);
  EXPECT_EQ(details.message(), status.error_message());
  const google::rpc::BadRequest bad = BadRequestOf(status);
  ASSERT_EQ(bad.field_violations_size(), 1);
  EXPECT_EQ(bad.field_violations(0).field(), "sampling.top_p");
  EXPECT_EQ(bad.field_violations(0).description(), status.error_message());
}

TEST(ToGrpcStatus, FindsTheFieldThatALibraryNames) {
  const auto field = [](const char* message) {
    const google::rpc::BadRequest bad =
        BadRequestOf(ToGrpcStatus(absl::InvalidArgumentError(message)));
    return bad.field_violations().empty() ? std::string() : bad.field_violations(0).field();
  };
  EXPECT_EQ(field("stopping.stop_strings[3] is 300: must be 1 to 256 bytes long"),
            "stopping.stop_strings[3]");
  EXPECT_EQ(field("sinks + recent is 40 (4 + 36): must be below prefix_tokens (40)"), "sinks");
  EXPECT_EQ(field("sampling.logit_bias of token 3 is 400: must be in [-100, 100]"),
            "sampling.logit_bias");
  for (const char* message :
       {"the corpus has 5000 texts", "Nothing is known", "", "text", " is empty", "a b is 3"}) {
    const grpc::Status status = ToGrpcStatus(absl::InvalidArgumentError(message));
    EXPECT_EQ(status.error_details(), "") << message;
  }
}

TEST(WithFieldPrefix, PutsThePathBeforeANameOnly) {
  EXPECT_EQ(WithFieldPrefix("settings.", absl::InvalidArgumentError("eta is 11: must be 0 to 10")),
            absl::InvalidArgumentError("settings.eta is 11: must be 0 to 10"));
  EXPECT_EQ(WithFieldPrefix("settings.", absl::InvalidArgumentError("No name")),
            absl::InvalidArgumentError("No name"));
  EXPECT_EQ(WithFieldPrefix("settings.", absl::NotFoundError("eta is gone")),
            absl::NotFoundError("eta is gone"));
}

TEST(WithRetryDelay, BecomesRetryInfo) {
  const grpc::Status status = ToGrpcStatus(
      WithRetryDelay(absl::ResourceExhaustedError("full"), std::chrono::milliseconds(1250)));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  google::rpc::RetryInfo retry;
  const google::rpc::Status details = DetailsOf(status);
  ASSERT_EQ(details.details_size(), 1);
  ASSERT_TRUE(details.details(0).UnpackTo(&retry));
  EXPECT_EQ(retry.retry_delay().seconds(), 1);
  EXPECT_EQ(retry.retry_delay().nanos(), 250'000'000);
}

TEST(ToGrpcStatus, WhatTheEngineSaysPassesGetsRetryInfo) {
  absl::Status full = absl::ResourceExhaustedError("full");
  EXPECT_EQ(ToGrpcStatus(full).error_details(), "");
  full.SetPayload(kRetryLater, absl::Cord());
  google::rpc::RetryInfo retry;
  const google::rpc::Status details = DetailsOf(ToGrpcStatus(full));
  ASSERT_EQ(details.details_size(), 1);
  ASSERT_TRUE(details.details(0).UnpackTo(&retry));
  EXPECT_EQ(retry.retry_delay().seconds(), 1);
}

TEST(ResourceNotFound, BecomesResourceInfo) {
  const grpc::Status status =
      ToGrpcStatus(ResourceNotFound("ripplekv.v1.Profile", "abc", "no profile abc"));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  google::rpc::ResourceInfo resource;
  const google::rpc::Status details = DetailsOf(status);
  ASSERT_EQ(details.details_size(), 1);
  ASSERT_TRUE(details.details(0).UnpackTo(&resource));
  EXPECT_EQ(resource.resource_type(), "ripplekv.v1.Profile");
  EXPECT_EQ(resource.resource_name(), "abc");
}

}  // namespace
}  // namespace ripplekv
