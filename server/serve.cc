#include "server/serve.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "server/address.h"
#include "server/observe/http_endpoint.h"
#include "server/rpc/grpc_server.h"
#include "server/version.h"

namespace ripplekv {
namespace {

// Time for the last messages of calls that just ended to reach their clients.
constexpr std::chrono::seconds kFlushTime(2);

sigset_t EndingSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

// gRPC stops listening for good where it finds no file descriptor for a connection, and the limit
// that programs start with is often 1,024: as many as the process may have.
void UseAllFileDescriptors() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);  // allowed to everybody; process_max_fds shows it
}

int WaitForSignal() {
  const sigset_t signals = EndingSignals();
  int signal = 0;
  sigwait(&signals, &signal);
  return signal;
}

void LogOptions(const ServerOptions& options, Log* log) {
  Log::Fields fields = {{"version", kVersion}};
  for (const auto& [name, value] : options.printed) {
    std::string key = name;
    std::replace(key.begin(), key.end(), '-', '_');
    fields.emplace_back(key, value);
  }
  log->Info("options", std::move(fields));
}

}  // namespace

void BlockSignals() {
  const sigset_t signals = EndingSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a full disk is an error of the write, not the server's end
}

void PreferPassiveOpenMp(char** argv) {
  setenv("GRPC_VERBOSITY", "NONE", 0);  // its lines are not ours: what fails is told by status
  if (std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  if (setenv("OMP_WAIT_POLICY", "passive", 0) != 0) return;
  execv("/proc/self/exe", argv);
  // Where that is not possible (no /proc) the server is slower beside busy neighbours, not wrong.
}

LogLevel LogLevelOf(const ServerOptions& options) {
  if (options.log_level == "debug") return LogLevel::kDebug;
  if (options.log_level == "warning") return LogLevel::kWarning;
  if (options.log_level == "error") return LogLevel::kError;
  return LogLevel::kInfo;
}

LogFormat LogFormatOf(const ServerOptions& options) {
  return options.log_format == "json" ? LogFormat::kJson : LogFormat::kText;
}

int Serve(const ServerOptions& options, Backend& backend, const Access& access,
          Readiness* readiness, Log* log, Metrics* metrics) {
  HealthService* const health = readiness->health();
  UseAllFileDescriptors();
  LogOptions(options, log);
  const auto fail = [&](const absl::Status& status) {
    log->Error("start_failed",
               {{"code", absl::StatusCodeToString(status.code())}, {"error", status.message()}});
    return 1;
  };
  // Both were checked with the options.
  const Address listen = *ParseAddress(options.listen);
  const Address metrics_listen = *ParseAddress(options.metrics_listen);

  auto http =
      HttpEndpoint::Start(metrics_listen, {.metrics = [metrics] { return metrics->Scrape(); },
                                           .serving = [health] { return health->serving(); }});
  if (!http.ok()) return fail(http.status());
  std::vector<grpc::Service*> services = backend.services();
  services.push_back(health);
  auto server = GrpcServer::Start(
      {listen, options.max_message_bytes, options.reflection, access.credentials()}, services);
  if (!server.ok()) return fail(server.status());
  log->Info("listening",
            {{"grpc", (*server)->address().ToString()}, {"http", (*http)->address().ToString()}});

  std::atomic<bool> loaded{false};
  absl::Status load_status;
  std::thread loader([&] {
    load_status = backend.Load();
    loaded = true;
    // Wakes the wait below, where only this thread knows that there is nothing to wait for.
    if (!load_status.ok()) kill(getpid(), SIGTERM);
  });
  const int signal = WaitForSignal();
  if (!loaded) {
    // A large model may take minutes to load, nothing that is half done needs care, and nobody is
    // being served.
    log->Info("stopped", {{"signal", strsignal(signal)}, {"loading", true}});
    std::_Exit(0);
  }
  loader.join();
  if (!load_status.ok()) return fail(load_status);

  log->Info("draining",
            {{"signal", strsignal(signal)}, {"seconds", options.drain_timeout_seconds}});
  readiness->Close();
  const auto patience = std::chrono::seconds(options.drain_timeout_seconds);
  const auto deadline = std::chrono::steady_clock::now() + patience;
  backend.Drain(deadline);
  health->CloseWatches();
  backend.Stop();
  const auto left = std::max<std::chrono::steady_clock::duration>(
      deadline - std::chrono::steady_clock::now(),
      std::min<std::chrono::seconds>(kFlushTime, patience));
  (*server)->Shutdown(std::chrono::system_clock::now() +
                      std::chrono::duration_cast<std::chrono::system_clock::duration>(left));
  log->Info("stopped", {{"signal", strsignal(signal)}});
  return 0;
}

}  // namespace ripplekv
