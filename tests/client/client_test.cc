#include "client/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <atomic>

#include <chrono>
#include <set>
#include <string>
#include <thread>

#include "client/rpc_error.h"
#include "tests/client/scripted_service.h"

namespace ripplekv {
namespace {

using testing::HasSubstr;

v1::GenerateRequest Ask(const std::string& text) {
  v1::GenerateRequest request;
  request.set_text(text);
  return request;
}

class ClientTest : public testing::Test {
 protected:
  absl::StatusOr<v1::GenerateComplete> Generate(const std::string& text, CallOptions options = {}) {
    return client_.Generate(Ask(text), options, [this](const v1::GenerateResponse& response) {
      text_ += response.chunk().text();
      ++events_;
    });
  }

  ScriptedService service_;
  Client client_{service_.address()};
  std::string text_;
  int events_ = 0;
};

TEST_F(ClientTest, EveryMessageIsSeenInOrder) {
  const auto complete = Generate("hello world", {.request_id = "id-1"});
  ASSERT_TRUE(complete.ok()) << complete.status();
  EXPECT_EQ(text_, "hello world");
  EXPECT_EQ(events_, 3);
  EXPECT_EQ(complete->usage().output_tokens(), 57);
  EXPECT_EQ(service_.last_request_id, "id-1");
}

TEST_F(ClientTest, CallsAboutAContextSayWhich) {
  ASSERT_TRUE(Generate("no context").ok());
  EXPECT_EQ(service_.last_context_key, "");
  const auto key_of = [&](const std::string& id) {
    v1::GenerateRequest request = Ask("x");
    request.set_context_id(id);
    EXPECT_TRUE(client_.Generate(request, {}, [](const auto&) {}).ok());
    return service_.last_context_key;
  };
  EXPECT_EQ(key_of("0123456789abcdef"), "0123456789abcdef");
  EXPECT_EQ(key_of("the-key.0123456789abcdef"), "the-key");
  EXPECT_EQ(key_of("a.b.0123456789abcdef"), "a.b");
  EXPECT_EQ(key_of("not for a header \n"), "");
  EXPECT_EQ(key_of("\xc3\xa4"), "");

  v1::GetContextRequest get;
  get.set_context_id("got.0");
  client_.GetContext(get, {}).IgnoreError();
  EXPECT_EQ(service_.last_context_key, "got");
  std::set<std::string> keys;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(client_.CreateContext({}, {}).ok());
    EXPECT_THAT(service_.last_context_key, testing::MatchesRegex("[0-9a-f]{16}"));
    keys.insert(service_.last_context_key);
  }
  EXPECT_EQ(keys.size(), 3u);
}

TEST_F(ClientTest, CallsTakeTurnsAtSeveralAddresses) {
  ScriptedService other;
  const Client both("ipv4:" + service_.address() + "," + other.address());
  const auto ask = [&](int calls) {
    for (int i = 0; i < calls; ++i) {
      EXPECT_TRUE(both.Generate(Ask("x"), {.wait_for_ready = true}, [](const auto&) {}).ok());
    }
  };
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while ((service_.generated == 0 || other.generated == 0) &&
         std::chrono::steady_clock::now() < deadline) {
    ask(1);
  }
  const int first = service_.generated, second = other.generated;
  ask(10);
  EXPECT_EQ(service_.generated - first, 5);
  EXPECT_EQ(other.generated - second, 5);
}

TEST_F(ClientTest, ErrorsCarryDetailsAndTheRequestId) {
  const auto invalid = Generate("invalid");
  EXPECT_EQ(invalid.status().code(), absl::StatusCode::kInvalidArgument);
  const RpcErrorDetails details = DetailsOf(invalid.status());
  ASSERT_EQ(details.field_violations.size(), 1u);
  EXPECT_EQ(details.field_violations[0].field, "sampling.top_p");
  EXPECT_EQ(details.request_id, "made");
  const auto full = Generate("full", {.request_id = "mine"});
  EXPECT_EQ(full.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(DetailsOf(full.status()).retry_delay_seconds, 3.0);
  EXPECT_EQ(DetailsOf(full.status()).request_id, "mine");
}

TEST_F(ClientTest, AStreamThatEndsEarlyIsAnError) {
  const auto cut = Generate("cut");
  EXPECT_EQ(cut.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(cut.status().message(), HasSubstr(service_.address()));
}

TEST_F(ClientTest, ACancellerStopsARunningCallAndLaterOnes) {
  Canceller canceller;
  EXPECT_FALSE(canceller.Cancel());
  canceller.Reset();
  // A cancel before the call begins ends it at once: then no later one finds it running.
  std::atomic<bool> ended = false;
  std::thread other([&] {
    while (!ended && !canceller.Cancel()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  const auto slow = Generate("slow", {.canceller = &canceller});
  ended = true;
  other.join();
  EXPECT_EQ(slow.status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(Generate("hello", {.canceller = &canceller}).status().code(),
            absl::StatusCode::kCancelled);
  canceller.Reset();
  EXPECT_TRUE(Generate("hello", {.canceller = &canceller}).ok());
}

TEST_F(ClientTest, ATimeoutEndsTheCallAtBothEnds) {
  const auto slow = Generate("slow", {.timeout_seconds = 0.2});
  EXPECT_EQ(slow.status().code(), absl::StatusCode::kDeadlineExceeded);
  for (int i = 0; i < 1000 && !service_.cancelled; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(service_.cancelled);
  EXPECT_TRUE(Generate("hello", {.timeout_seconds = 1e300}).ok());
}

TEST_F(ClientTest, AnUnreachableServerIsNamed) {
  const std::string address = service_.address();
  service_.Stop();
  const auto model = Client(address).GetModel({});
  EXPECT_EQ(model.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(model.status().message(), HasSubstr("no server can be reached at " + address));
}

TEST_F(ClientTest, AServerThatIsSlowToAnswerAConnectionIsWaitedFor) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(listener, 8), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const auto model = Client("127.0.0.1:" + std::to_string(ntohs(address.sin_port)))
                         .GetModel({.timeout_seconds = 1});
  EXPECT_EQ(model.status().code(), absl::StatusCode::kDeadlineExceeded) << model.status();
  close(listener);
}

TEST_F(ClientTest, ScoresAndContexts) {
  v1::ScoreRequest score;
  score.add_continuations()->set_text("abc");
  EXPECT_EQ(client_.Score(score, {})->continuations(0).logprob(), -1.5);
  score.set_text("invalid");
  EXPECT_EQ(DetailsOf(client_.Score(score, {}).status()).field_violations.size(), 1u);
  EXPECT_EQ(client_.CreateContext({}, {})->context().tokens(), 4096);
  v1::GetContextRequest one;
  one.set_context_id(TestContext().context_id());
  EXPECT_EQ(client_.GetContext(one, {})->context().tokens(), 4096);
  one.set_context_id("x");
  EXPECT_EQ(client_.GetContext(one, {}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(client_.ListContexts({}, {})->next_page_token(), "aa");
  EXPECT_EQ(client_.DeleteContext({}, {}).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ClientTest, CallsOfTheOtherService) {
  v1::GetProfileRequest unknown;
  unknown.set_profile_id("x");
  EXPECT_EQ(client_.GetProfile(unknown, {}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(client_.GetProfile({}, {})->in_force());
  int events = 0;
  const auto complete =
      client_.CalibrateModel({}, {}, [&](const v1::CalibrateModelResponse&) { ++events; });
  ASSERT_TRUE(complete.ok()) << complete.status();
  EXPECT_EQ(events, 103);
  // The scripted service does not have it.
  EXPECT_EQ(client_.DeleteProfile({}, {}).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(client_.CheckHealth("", {})->status(), grpc::health::v1::HealthCheckResponse::SERVING);
  EXPECT_EQ(client_.CheckHealth("x", {}).status().code(), absl::StatusCode::kNotFound);
}

TEST(ServerAddressTest, WhatIsAccepted) {
  for (const char* address : {"127.0.0.1:50051", "localhost:1", "[::1]:65535", "unix:/run/r.sock",
                              "dns:///host:50051", "ipv4:127.0.0.1:1,127.0.0.1:2"}) {
    EXPECT_TRUE(CheckServerAddress(address).ok()) << address;
  }
  for (const char* address : {"", "localhost", ":50051", "host:", "host:0", "host:65536", "host:x",
                              "::1:50051", "[]:1"}) {
    EXPECT_THAT(CheckServerAddress(address).message(), HasSubstr(std::string("'") + address + "'"));
  }
}

}  // namespace
}  // namespace ripplekv
