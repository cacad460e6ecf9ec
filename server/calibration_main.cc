// ripplekv-calibration-server: measures sensitivity profiles for servers that do not calibrate
// themselves.
#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <memory>

#include "server/calibration_parts.h"
#include "server/calibration_process.h"
#include "server/serve.h"
#include "server/version.h"

int main(int argc, char** argv) {
  using namespace ripplekv;
  BlockSignals();  // and over the restart below
  PreferPassiveOpenMp(argv);
  OptionsExit exit;
  const std::optional<ServerOptions> options =
      ParseOptions(Program::kCalibrationServer, argc, argv, &exit);
  if (!options.has_value()) {
    std::fputs(exit.text.c_str(), exit.code == 0 ? stdout : stderr);
    return exit.code;
  }
  Log log(LogLevelOf(*options), LogFormatOf(*options));
  Metrics metrics({.version = kVersion,
                   .grpc = grpc::Version(),
                   .libtorch = kLibtorchVersion,
                   .compute = options->compute});
  const absl::StatusOr<std::unique_ptr<Access>> access = Access::Open(*options, &log, &metrics);
  if (!access.ok()) {
    log.Error("start_failed", {{"error", access.status().message()}});
    return absl::IsInvalidArgument(access.status()) ? kUsageExit : 1;
  }
  absl::StatusOr<std::shared_ptr<ProfileStore>> store =
      OpenStore(options->profile_dir, &log, &metrics);
  if (!store.ok()) {
    log.Error("start_failed", {{"option", "--profile-dir"}, {"error", store.status().message()}});
    return 1;
  }
  HealthService health({v1::CalibrationService::service_full_name()});
  Readiness readiness(&health, &metrics);
  CalibrationProcess process(*options, *std::move(store), &readiness,
                             {&log, &metrics, access->get()});
  return Serve(*options, process, **access, &readiness, &log, &metrics);
}
