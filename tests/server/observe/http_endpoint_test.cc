#include "server/observe/http_endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <vector>

namespace ripplekv {
namespace {

using testing::HasSubstr;

TEST(HttpEndpoint, AnswersMetricsAndHealth) {
  std::atomic<bool> serving{false};
  auto endpoint = HttpEndpoint::Start(
      {"127.0.0.1", 0},
      {.metrics = [] { return std::string("m 1\n"); }, .serving = [&] { return serving.load(); }});
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  ASSERT_GT((*endpoint)->address().port, 0);
  httplib::Client client("127.0.0.1", (*endpoint)->address().port);
  const auto metrics = client.Get("/metrics");
  ASSERT_TRUE(metrics);
  EXPECT_EQ(metrics->status, 200);
  EXPECT_EQ(metrics->body, "m 1\n");
  EXPECT_THAT(metrics->get_header_value("Content-Type"), HasSubstr("text/plain; version=0.0.4"));
  EXPECT_EQ(client.Get("/healthz")->status, 503);
  serving = true;
  EXPECT_EQ(client.Get("/healthz")->status, 200);
  EXPECT_EQ(client.Get("/other")->status, 404);
}

TEST(HttpEndpoint, ConnectionsThatSayNothingHoldUpNobodyForLong) {
  auto endpoint = HttpEndpoint::Start(
      {"127.0.0.1", 0},
      {.metrics = [] { return std::string("m 1\n"); }, .serving = [] { return true; }});
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  const int port = (*endpoint)->address().port;
  std::vector<int> silent;
  for (int i = 0; i < 24; ++i) {  // more than there are threads
    silent.push_back(socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(connect(silent.back(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  httplib::Client client("127.0.0.1", port);
  client.set_read_timeout(
      9);  // three turns of two seconds, and time to spare; below 10, Prometheus' own
  const auto metrics = client.Get("/metrics");
  ASSERT_TRUE(metrics);
  EXPECT_EQ(metrics->status, 200);
  for (const int connection : silent) close(connection);
}

TEST(HttpEndpoint, NamesAnAddressThatIsTaken) {
  const HttpEndpoint::Handlers handlers = {.metrics = [] { return std::string(); },
                                           .serving = [] { return true; }};
  auto first = HttpEndpoint::Start({"127.0.0.1", 0}, handlers);
  ASSERT_TRUE(first.ok());
  const auto second = HttpEndpoint::Start((*first)->address(), handlers);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()), HasSubstr((*first)->address().ToString()));
}

}  // namespace
}  // namespace ripplekv
