#include "server/observe/http_endpoint.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace ripplekv {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

// A connection of a client.
class Socket {
 public:
  explicit Socket(int port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    const timeval patience = {.tv_sec = 10, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }

  // False where the server has closed it.
  bool Send(const std::string& text) const {
    return send(fd_, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  }

  // All that comes until the server closes; "reset" where it ends otherwise.
  std::string ReadAll() const {
    std::string text;
    char bytes[4096];
    while (true) {
      const ssize_t got = recv(fd_, bytes, sizeof(bytes), 0);
      if (got < 0) return "reset";
      if (got == 0) return text;
      text.append(bytes, static_cast<size_t>(got));
    }
  }

 private:
  int fd_;
};

std::string Ask(int port, const std::string& request) {
  const Socket socket(port);
  socket.Send(request);
  return socket.ReadAll();
}

std::string Get(int port, const std::string& path) {
  return Ask(port, "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
}

std::unique_ptr<HttpEndpoint> Start(HttpEndpoint::Handlers handlers,
                                    milliseconds connection_time = std::chrono::seconds(5)) {
  auto endpoint = HttpEndpoint::Start({"127.0.0.1", 0}, std::move(handlers), connection_time);
  EXPECT_TRUE(endpoint.ok()) << endpoint.status();
  return *std::move(endpoint);
}

HttpEndpoint::Handlers Fixed(std::string metrics = "m 1\n") {
  return {.metrics = [metrics = std::move(metrics)] { return metrics; },
          .serving = [] { return true; }};
}

TEST(HttpEndpoint, AnswersMetricsAndHealth) {
  std::atomic<bool> serving{false};
  const auto endpoint = Start(
      {.metrics = [] { return std::string("m 1\n"); }, .serving = [&] { return serving.load(); }});
  const int port = endpoint->address().port;
  ASSERT_GT(port, 0);
  EXPECT_EQ(Get(port, "/metrics?a=b"),
            "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n"
            "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
            "Connection: close\r\n\r\nm 1\n");
  EXPECT_THAT(Get(port, "/healthz"), StartsWith("HTTP/1.1 503 "));
  serving = true;
  EXPECT_THAT(Get(port, "/healthz"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(Get(port, "/other"), StartsWith("HTTP/1.1 404 "));
}

TEST(HttpEndpoint, AnswersOnlyWhatItUnderstands) {
  const auto endpoint = Start(Fixed());
  const int port = endpoint->address().port;
  const std::string head = Ask(port, "HEAD /metrics HTTP/1.0\r\n\r\n");
  EXPECT_THAT(head, HasSubstr("Content-Length: 4\r\n"));
  EXPECT_THAT(head, EndsWith("\r\n\r\n"));
  EXPECT_THAT(Ask(port, "nonsense\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Ask(port, "\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Ask(port, "GET /metrics HTTP/2.0\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Ask(port, "GET /" + std::string(9000, 'a')), StartsWith("HTTP/1.1 431 "));
  // Its body, which nobody wants, does not cost it the answer.
  EXPECT_THAT(Ask(port, "POST /metrics HTTP/1.1\r\n\r\n" + std::string(100'000, 'x')),
              StartsWith("HTTP/1.1 405 "));
}

TEST(HttpEndpoint, SendsWhatIsLongerThanASocketTakes) {
  const std::string metrics(8 << 20, 'm');
  const auto endpoint = Start(Fixed(metrics));
  EXPECT_THAT(Get(endpoint->address().port, "/metrics"), EndsWith("\r\n\r\n" + metrics));
}

TEST(HttpEndpoint, SlowConnectionsHoldUpNeitherOthersNorTheEnd) {
  auto endpoint = Start(Fixed());
  const int port = endpoint->address().port;
  std::vector<Socket> slow;
  for (int i = 0; i < 200; ++i) {
    slow.emplace_back(port);
    if (i % 2 == 0) slow.back().Send("GET /metrics HTTP/1.1\r\nx: ");
  }
  std::atomic<bool> enough{false};
  std::thread drip([&] {
    while (!enough) {
      for (const Socket& one : slow) one.Send("x");
      std::this_thread::sleep_for(milliseconds(10));
    }
  });
  const auto start = steady_clock::now();
  for (int i = 0; i < 10; ++i) EXPECT_THAT(Get(port, "/healthz"), StartsWith("HTTP/1.1 200 "));
  endpoint.reset();
  EXPECT_LT(steady_clock::now() - start, milliseconds(2500));  // half of what a connection gets
  enough = true;
  drip.join();
}

TEST(HttpEndpoint, AConnectionHasItsTimeHoweverItSpeaks) {
  const auto endpoint = Start(Fixed(), milliseconds(200));
  const Socket silent(endpoint->address().port), dripping(endpoint->address().port);
  EXPECT_EQ(silent.ReadAll(), "");
  const auto start = steady_clock::now();
  while (dripping.Send("x") && steady_clock::now() - start < std::chrono::seconds(8)) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_LT(steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_THAT(Get(endpoint->address().port, "/healthz"), StartsWith("HTTP/1.1 200 "));
}

TEST(HttpEndpoint, NamesAnAddressThatIsTaken) {
  const auto first = Start(Fixed());
  const auto second = HttpEndpoint::Start(first->address(), Fixed());
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(first->address().ToString()));
  EXPECT_FALSE(HttpEndpoint::Start({"192.0.2.1", 0}, Fixed()).ok());
}

}  // namespace
}  // namespace ripplekv
