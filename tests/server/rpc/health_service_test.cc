#include "server/rpc/health_service.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "server/rpc/grpc_server.h"

namespace ripplekv {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

class HealthServiceTest : public testing::Test {
 protected:
  HealthServiceTest() {
    auto server = GrpcServer::Start({{"127.0.0.1", 0}, 1 << 20, false}, {&health_});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = Health::NewStub(
        grpc::CreateChannel(server_->address().ToString(), grpc::InsecureChannelCredentials()));
  }

  // The state of a service, or the call's error code as a negative number.
  int Check(const std::string& service) {
    grpc::ClientContext context;
    HealthCheckRequest request;
    request.set_service(service);
    HealthCheckResponse response;
    const grpc::Status status = stub_->Check(&context, request, &response);
    return status.ok() ? static_cast<int>(response.status())
                       : -static_cast<int>(status.error_code());
  }

  HealthService health_{{"a.Service"}};
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<Health::Stub> stub_;
};

TEST_F(HealthServiceTest, SaysNotServingFromTheStart) {
  EXPECT_EQ(Check(""), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(Check("a.Service"), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(Check("other"), -static_cast<int>(grpc::StatusCode::NOT_FOUND));
  health_.SetServing(true);
  EXPECT_TRUE(health_.serving());
  EXPECT_EQ(Check(""), HealthCheckResponse::SERVING);
  EXPECT_EQ(Check("a.Service"), HealthCheckResponse::SERVING);
  health_.SetServing(false);
  EXPECT_EQ(Check("a.Service"), HealthCheckResponse::NOT_SERVING);
}

TEST_F(HealthServiceTest, WatchTellsEveryChangeAndStaysOpen) {
  grpc::ClientContext context;
  HealthCheckRequest request;
  request.set_service("a.Service");
  const auto watch = stub_->Watch(&context, request);
  HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  health_.SetServing(true);
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  health_.SetServing(true);  // no change, no message
  health_.SetServing(false);
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  health_.CloseWatches();
  EXPECT_FALSE(watch->Read(&response));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(HealthServiceTest, WatchOfAnUnknownServiceWaits) {
  grpc::ClientContext context;
  HealthCheckRequest request;
  request.set_service("other");
  const auto watch = stub_->Watch(&context, request);
  HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVICE_UNKNOWN);
  context.TryCancel();
  EXPECT_FALSE(watch->Read(&response));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(HealthServiceTest, ATakenPortIsAnErrorThatNamesIt) {
  HealthService other({});
  const auto second = GrpcServer::Start({server_->address(), 1 << 20, false}, {&other});
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find(server_->address().ToString()), std::string::npos);
}

}  // namespace
}  // namespace ripplekv
