// ripplekv-server: generates over compressed KV caches, and calibrates the model it serves.
#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/credentials.h"
#include "server/calibration_parts.h"
#include "server/decode_process.h"
#include "server/serve.h"
#include "server/version.h"

int main(int argc, char** argv) {
  using namespace ripplekv;
  BlockSignals();  // and over the restart below
  PreferPassiveOpenMp(argv);
  OptionsExit exit;
  const std::optional<ServerOptions> options = ParseOptions(Program::kServer, argc, argv, &exit);
  if (!options.has_value()) {
    std::fputs(exit.text.c_str(), exit.code == 0 ? stdout : stderr);
    return exit.code;
  }
  Log log(LogLevelOf(*options), LogFormatOf(*options));
  Metrics metrics({.version = kVersion,
                   .grpc = grpc::Version(),
                   .libtorch = kLibtorchVersion,
                   .compute = options->compute});
  // Read again by every call there; here only to end at once where that cannot succeed.
  if (absl::Status wrong = ReadCredentials(options->calibration_credentials()).status();
      !wrong.ok()) {
    log.Error("start_failed", {{"error", absl::StrCat("--calibration: ", wrong.message())}});
    return kUsageExit;
  }
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
  HealthService health(
      {v1::DecodeService::service_full_name(), v1::CalibrationService::service_full_name()});
  Readiness readiness(&health, &metrics);
  DecodeProcess process(*options, *std::move(store), &readiness, {&log, &metrics, access->get()});
  return Serve(*options, process, **access, &readiness, &log, &metrics);
}
