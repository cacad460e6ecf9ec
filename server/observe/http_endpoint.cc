#include "server/observe/http_endpoint.h"

#include <httplib.h>

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ripplekv {
namespace {

// A connection that says nothing holds a thread: so that a few of them delay nobody, and many not
// for long.
constexpr size_t kThreads = 8;
constexpr time_t kSilenceSeconds = 2;

}  // namespace

class HttpEndpoint::Impl {
 public:
  explicit Impl(Handlers handlers) : handlers_(std::move(handlers)) {
    server_.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
    // httplib sets SO_REUSEPORT by default, with which a second server on the same port would be no
    // error.
    server_.set_socket_options([](socket_t socket) {
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    });
    server_.set_read_timeout(kSilenceSeconds);
    server_.set_write_timeout(kSilenceSeconds);
    server_.set_keep_alive_timeout(kSilenceSeconds);
    server_.set_payload_max_length(4096);
    server_.Get("/metrics", [this](const httplib::Request&, httplib::Response& response) {
      response.set_content(handlers_.metrics(), "text/plain; version=0.0.4; charset=utf-8");
    });
    server_.Get("/healthz", [this](const httplib::Request&, httplib::Response& response) {
      const bool serving = handlers_.serving();
      response.status = serving ? 200 : 503;
      response.set_content(serving ? "SERVING\n" : "NOT_SERVING\n", "text/plain");
    });
  }

  ~Impl() {
    if (!thread_.joinable()) return;
    server_.stop();
    thread_.join();
  }

  // The port, or -1.
  int Bind(const Address& address) {
    if (address.port == 0) return server_.bind_to_any_port(address.host.c_str());
    return server_.bind_to_port(address.host.c_str(), address.port) ? address.port : -1;
  }

  void Run() {
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    // stop() before the loop runs would be lost.
    while (!server_.is_running()) std::this_thread::yield();
  }

 private:
  const Handlers handlers_;
  httplib::Server server_;
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<HttpEndpoint>> HttpEndpoint::Start(const Address& address,
                                                                  Handlers handlers) {
  auto impl = std::make_unique<Impl>(std::move(handlers));
  const int port = impl->Bind(address);
  if (port < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot listen at ", address.ToString(),
                     ": the port is taken, or the address is not of this machine"));
  }
  impl->Run();
  return std::unique_ptr<HttpEndpoint>(new HttpEndpoint({address.host, port}, std::move(impl)));
}

HttpEndpoint::HttpEndpoint(Address address, std::unique_ptr<Impl> impl)
    : address_(std::move(address)), impl_(std::move(impl)) {}

HttpEndpoint::~HttpEndpoint() = default;

}  // namespace ripplekv
