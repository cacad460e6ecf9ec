#pragma once

#include <grpcpp/impl/service_type.h>

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/observe/log.h"
#include "server/observe/metrics.h"
#include "server/options.h"
#include "server/rpc/access.h"
#include "server/rpc/readiness.h"

namespace ripplekv {

// What a server is besides listening: its services, and the life of what stands behind them.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::vector<grpc::Service*> services() = 0;

  // Loads the model and opens the services; on a thread of its own, after the server listens. An
  // error ends the process.
  virtual absl::Status Load() = 0;

  // Closes the services to new calls and waits for accepted work, until the deadline at most.
  virtual void Drain(std::chrono::steady_clock::time_point deadline) = 0;

  // Ends what is left. Calls may still be open: they get their last status now.
  virtual void Stop() = 0;
};

// To be called first in main, before any other thread: from here on SIGTERM and SIGINT only end
// Serve, and SIGPIPE does nothing.
void BlockSignals();

// Restarts the program once with OMP_WAIT_POLICY=passive where the variable is not set. LibTorch's
// OpenMP threads would otherwise spin while they wait, and on a machine whose processors are also
// wanted by gRPC's threads, or by another process, spinning teams stop each other for whole
// scheduler slices. libgomp reads its environment when it is loaded, before main: setting the
// variable here without starting again would be too late.
// Also leaves gRPC's own lines out of the log (GRPC_VERBOSITY, where it is not set).
void PreferPassiveOpenMp(char** argv);

// Listens, loads, serves until SIGTERM or SIGINT, drains. The exit code of the process: 0 after a
// signal, 1 where the server could not start (logged). The backend says when it is ready.
int Serve(const ServerOptions& options, Backend& backend, const Access& access,
          Readiness* readiness, Log* log, Metrics* metrics);

// The log that the options describe.
LogLevel LogLevelOf(const ServerOptions& options);
LogFormat LogFormatOf(const ServerOptions& options);

}  // namespace ripplekv
