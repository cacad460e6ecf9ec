#include "server/observe/http_endpoint.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>
#include <list>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ripplekv {
namespace {

using Clock = std::chrono::steady_clock;

// One more makes the oldest of them go, so that no number of silent ones keeps anybody out.
constexpr size_t kMaxConnections = 64;
// Those that are there are listened to before more come than make them go.
constexpr int kAcceptedAtOnce = 16;
constexpr size_t kMaxHeadBytes = 8192;
// Before what failed for want of file descriptors or memory is tried again.
constexpr std::chrono::milliseconds kPause(100);

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

struct Connection {
  FileDescriptor socket;
  Clock::time_point deadline;
  std::string head;    // what came of the request so far
  std::string answer;  // empty until the request is whole
  size_t sent = 0;     // of the answer
};

std::string Answer(absl::string_view status, absl::string_view body, absl::string_view more = "",
                   bool with_body = true) {
  return absl::StrCat("HTTP/1.1 ", status, "\r\nContent-Length: ", body.size(), "\r\n", more,
                      "Connection: close\r\n\r\n", with_body ? body : "");
}

// A socket that listens there, and its port in *port; invalid where that is not possible.
FileDescriptor Listen(const Address& address, int* port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found) != 0) {
    return FileDescriptor();
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(found, freeaddrinfo);
  for (const addrinfo* one = list.get(); one != nullptr; one = one->ai_next) {
    FileDescriptor listener(
        socket(one->ai_family, one->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, one->ai_protocol));
    const int yes = 1, no = 0;
    if (listener.get() < 0) continue;
    setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    // [::] is IPv4's too.
    if (one->ai_family == AF_INET6) {
      setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
    }
    sockaddr_storage bound = {};
    socklen_t size = sizeof(bound);
    if (bind(listener.get(), one->ai_addr, one->ai_addrlen) != 0 ||
        listen(listener.get(), SOMAXCONN) != 0 ||
        getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
      continue;
    }
    *port = ntohs(one->ai_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
    return listener;
  }
  return FileDescriptor();
}

}  // namespace

// One thread that never waits for a single connection.
class HttpEndpoint::Impl {
 public:
  Impl(Handlers handlers, std::chrono::milliseconds connection_time, FileDescriptor listener,
       FileDescriptor wake)
      : handlers_(std::move(handlers)),
        connection_time_(connection_time),
        listener_(std::move(listener)),
        wake_(std::move(wake)),
        thread_([this] { Run(); }) {}

  ~Impl() {
    eventfd_write(wake_.get(), 1);
    thread_.join();
  }

 private:
  void Run() {
    while (true) {
      std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0}};
      const Clock::time_point now = Clock::now();
      const bool accepts = now >= accept_from_;
      Clock::time_point until = accepts ? Clock::time_point::max() : accept_from_;
      polled.push_back({accepts ? listener_.get() : -1, POLLIN, 0});
      for (const Connection& one : connections_) {
        const short wanted = one.answer.empty() || Sent(one) ? POLLIN : POLLOUT;
        polled.push_back({one.socket.get(), wanted, 0});
        until = std::min(until, one.deadline);
      }
      int timeout = -1;  // none
      if (until != Clock::time_point::max()) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - now);
        timeout = static_cast<int>(std::max<int64_t>(0, left.count()));
      }
      if (poll(polled.data(), polled.size(), timeout) < 0 && errno != EINTR) {
        std::this_thread::sleep_for(kPause);
      }
      if (polled[0].revents != 0) return;
      size_t at = 2;
      for (auto it = connections_.begin(); it != connections_.end(); ++at) {
        const bool ready = polled[at].revents != 0;
        it = (ready && !GoOn(*it)) || Clock::now() >= it->deadline ? connections_.erase(it)
                                                                   : std::next(it);
      }
      if (polled[1].revents != 0) Accept();
    }
  }

  static bool Sent(const Connection& one) { return one.sent == one.answer.size(); }

  void Accept() {
    for (int i = 0; i < kAcceptedAtOnce; ++i) {
      FileDescriptor socket(
          accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (socket.get() < 0) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        if (errno != EAGAIN) accept_from_ = Clock::now() + kPause;
        return;
      }
      if (connections_.size() == kMaxConnections) connections_.pop_front();
      connections_.push_back({std::move(socket), Clock::now() + connection_time_, "", "", 0});
    }
  }

  // Reads or writes what can be without waiting; false where the connection is over.
  bool GoOn(Connection& one) {
    if (!one.answer.empty() && !Sent(one)) return Send(one);
    char bytes[4096];
    const ssize_t got = recv(one.socket.get(), bytes, sizeof(bytes), 0);
    if (got == 0) return false;
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    // What comes after the request is read all the same: closed over it, the connection would be
    // reset, and the answer lost.
    if (!one.answer.empty()) return true;
    one.head.append(bytes, static_cast<size_t>(got));
    const size_t end = one.head.find("\r\n\r\n");
    if (end == std::string::npos && one.head.size() <= kMaxHeadBytes) return true;
    one.answer = end > kMaxHeadBytes ? Answer("431 Request Header Fields Too Large", "")
                                     : AnswerTo(absl::string_view(one.head).substr(0, end));
    return Send(one);
  }

  bool Send(Connection& one) {
    const ssize_t written = send(one.socket.get(), one.answer.data() + one.sent,
                                 one.answer.size() - one.sent, MSG_NOSIGNAL);
    if (written < 0) return errno == EAGAIN || errno == EINTR;
    one.sent += static_cast<size_t>(written);
    if (Sent(one)) shutdown(one.socket.get(), SHUT_WR);  // the client closes
    return true;
  }

  std::string AnswerTo(absl::string_view head) const {
    const std::vector<absl::string_view> words =
        absl::StrSplit(head.substr(0, head.find("\r\n")), ' ');
    if (words.size() != 3 || !absl::StartsWith(words[2], "HTTP/1.")) {
      return Answer("400 Bad Request", "");
    }
    const bool only_head = words[0] == "HEAD";
    if (words[0] != "GET" && !only_head) {
      return Answer("405 Method Not Allowed", "", "Allow: GET, HEAD\r\n");
    }
    const absl::string_view path = words[1].substr(0, words[1].find('?'));
    try {
      if (path == "/metrics") {
        return Answer("200 OK", handlers_.metrics(),
                      "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n", !only_head);
      }
      if (path == "/healthz") {
        const bool serving = handlers_.serving();
        return Answer(serving ? "200 OK" : "503 Service Unavailable",
                      serving ? "SERVING\n" : "NOT_SERVING\n", "Content-Type: text/plain\r\n",
                      !only_head);
      }
    } catch (const std::exception&) {
      return Answer("500 Internal Server Error", "");
    }
    return Answer("404 Not Found", "");
  }

  const Handlers handlers_;
  const std::chrono::milliseconds connection_time_;
  const FileDescriptor listener_, wake_;
  std::list<Connection> connections_;  // of the thread, in the order of their arrival
  Clock::time_point accept_from_;
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<HttpEndpoint>> HttpEndpoint::Start(
    const Address& address, Handlers handlers, std::chrono::milliseconds connection_time) {
  FileDescriptor wake(eventfd(0, EFD_CLOEXEC));
  if (wake.get() < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot listen at ", address.ToString()));
  }
  int port = 0;
  FileDescriptor listener = Listen(address, &port);
  if (listener.get() < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot listen at ", address.ToString(),
                     ": the port is taken, or the address is not of this machine"));
  }
  return std::unique_ptr<HttpEndpoint>(
      new HttpEndpoint({address.host, port},
                       std::make_unique<Impl>(std::move(handlers), connection_time,
                                              std::move(listener), std::move(wake))));
}

HttpEndpoint::HttpEndpoint(Address address, std::unique_ptr<Impl> impl)
    : address_(std::move(address)), impl_(std::move(impl)) {}

HttpEndpoint::~HttpEndpoint() = default;

}  // namespace ripplekv
