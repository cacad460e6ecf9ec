#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/calibration_view.h"
#include "client/cli/commands.h"

namespace ripplekv {
namespace {

struct CalibrationsFlags {
  std::optional<std::string> cancel;
};

void AddFlags(CLI::App& app, CalibrationsFlags& flags) {
  app.add_option("--cancel", flags.cancel,
                 "End this one, whoever waits for it; what it measured is lost")
      ->type_name("JOB");
}

int Cancel(const std::string& job_id, Cli& cli) {
  v1::CancelCalibrationRequest request;
  request.set_job_id(job_id);
  const absl::StatusOr<v1::CancelCalibrationResponse> response =
      cli.MakeClient().CancelCalibration(request, cli.Options());
  if (!response.ok()) return cli.CallFailed(response.status());
  if (cli.json) {
    cli.WriteJson(*response);
  } else {
    cli.Write(absl::StrCat(RenderCancelled(response->calibration()), "\n"));
  }
  return kExitOk;
}

// Page by page.
absl::StatusOr<std::vector<v1::Calibration>> ListAll(Cli& cli) {
  const Client client = cli.MakeClient();
  std::vector<v1::Calibration> calibrations;
  v1::ListCalibrationsRequest request;
  do {
    absl::StatusOr<v1::ListCalibrationsResponse> page =
        client.ListCalibrations(request, cli.Options());
    if (!page.ok()) return page.status();
    if (page->calibrations().empty()) break;
    for (v1::Calibration& calibration : *page->mutable_calibrations()) {
      calibrations.push_back(std::move(calibration));
    }
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  return calibrations;
}

int Run(const CalibrationsFlags& flags, Cli& cli) {
  if (flags.cancel) return Cancel(*flags.cancel, cli);
  const absl::StatusOr<std::vector<v1::Calibration>> calibrations = ListAll(cli);
  if (!calibrations.ok()) return cli.CallFailed(calibrations.status());
  if (!cli.json) {
    if (calibrations->empty()) cli.WriteSide("Nothing was measured since the server started.\n");
    cli.Write(RenderCalibrations(*calibrations, cli.out));
    return kExitOk;
  }
  for (const v1::Calibration& calibration : *calibrations) cli.WriteJson(calibration);
  return kExitOk;
}

}  // namespace

void AddCalibrations(CLI::App& app, Cli& cli) {
  AddCommand<CalibrationsFlags>(app, cli, "calibrations",
                                "The measurements that run and that ended, or the end of one",
                                "  ripplekv calibrations\n"
                                "  ripplekv calibrations --cancel calibration-2\n"
                                "  ripplekv calibrations --json\n",
                                AddFlags, Run);
}

}  // namespace ripplekv
