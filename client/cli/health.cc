#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/help.h"
#include "client/format.h"

namespace ripplekv {
namespace {

using grpc::health::v1::HealthCheckResponse;

// Calls wait for the connection meanwhile: gRPC takes seconds to notice one that comes up between
// calls.
constexpr auto kPollInterval = std::chrono::milliseconds(50);
// A check that hangs must not use up the wait.
constexpr double kCheckTimeoutSeconds = 5;

struct HealthFlags {
  double wait_seconds = 0;
  std::string service;
};

void AddFlags(CLI::App& app, HealthFlags& flags) {
  app.add_option("--wait", flags.wait_seconds,
                 "Try until the server serves, this long at most; it need not listen yet")
      ->check(Seconds(/*may_be_zero=*/true))
      ->type_name("SECONDS");
  app.add_option(
         "--service", flags.service,
         "Full name of one service, e.g. ripplekv.v1.DecodeService; without it the server as a "
         "whole")
      ->type_name("NAME");
}

int Run(const HealthFlags& flags, Cli& cli) {
  const Client client = cli.MakeClient();
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    const auto elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start);
    const double left_seconds = flags.wait_seconds - elapsed.count();
    CallOptions options = cli.Options();
    const double timeout =
        left_seconds > 0 ? std::min(kCheckTimeoutSeconds, left_seconds) : kCheckTimeoutSeconds;
    options.timeout_seconds = std::min(timeout, options.timeout_seconds.value_or(timeout));
    options.wait_for_ready = left_seconds > 0;
    const absl::StatusOr<HealthCheckResponse> response = client.CheckHealth(flags.service, options);
    const bool serving = response.ok() && response->status() == HealthCheckResponse::SERVING;
    if (!serving && left_seconds > 0 && !cli.canceller.cancelled()) {
      std::this_thread::sleep_for(kPollInterval);
      continue;
    }
    if (!response.ok()) return cli.CallFailed(response.status());
    if (cli.json) {
      cli.WriteJson(*response);
    } else {
      cli.Write(absl::StrCat(HealthCheckResponse::ServingStatus_Name(response->status()), "\n"));
    }
    return serving ? kExitOk : kExitError;
  }
}

}  // namespace

void AddHealth(CLI::App& app, Cli& cli) {
  AddCommand<HealthFlags>(app, cli, "health", "Exit with 0 only when the server serves",
                          "  ripplekv health\n"
                          "  ripplekv health --wait 60 --service ripplekv.v1.DecodeService\n",
                          AddFlags, Run);
}

}  // namespace ripplekv
