#include <chrono>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/flags.h"
#include "client/input_file.h"
#include "client/profile_view.h"
#include "client/progress_line.h"

namespace ripplekv {
namespace {

// Between lines of progress where they stay on the screen.
constexpr double kLineIntervalSeconds = 5;

struct CalibrateFlags {
  CalibrationFlags settings;
  std::vector<std::string> text_files;
  std::string corpus;
  bool force = false;
  bool detach = false;
};

void AddFlags(CLI::App& app, CalibrateFlags& flags) {
  const std::string group = "Texts (without any: the server's corpus)";
  auto* name = app.add_option("--corpus", flags.corpus,
                              "\"default\", or a folder under the server's --corpus-dir")
                   ->type_name("NAME")
                   ->group(group);
  AddRepeated(app, "--text-file", flags.text_files, "A text to measure on; once for each")
      ->type_name("FILE")
      ->excludes(name)
      ->group(group);
  flags.settings.Add(app);
  app.add_flag("--force", flags.force, "Measure again although the profile is stored already");
  app.add_flag("--detach", flags.detach,
               "Let the measurement go on when this command ends before it; ripplekv calibrations "
               "shows it");
}

double NowSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int Run(const CalibrateFlags& flags, Cli& cli) {
  v1::CalibrateModelRequest request;
  flags.settings.Fill(request);
  if (!flags.corpus.empty()) request.mutable_corpus()->set_name(flags.corpus);
  for (const std::string& path : flags.text_files) {
    absl::StatusOr<std::string> text = ReadText(path);
    if (!text.ok()) return cli.UsageError(text.status());
    request.mutable_corpus()->mutable_texts()->add_texts(*std::move(text));
  }
  request.set_force(flags.force);
  request.set_detach(flags.detach);

  ProgressPace pace(kLineIntervalSeconds);
  bool line_is_open = false;
  std::string job_id;
  const auto show = [&](const v1::CalibrationProgress& event) {
    const ProgressState progress = {.done = event.examples_done(),
                                    .total = event.examples_total(),
                                    .fraction = event.fraction(),
                                    .elapsed_seconds = event.elapsed_seconds()};
    if (cli.err.interactive) {
      // Back to the first column, and away with what the line before had more.
      cli.WriteSide(absl::StrCat("\r", RenderProgress(progress, cli.err), "\033[K"));
      line_is_open = true;
    } else if (pace.Due(progress, NowSeconds())) {
      cli.WriteSide(absl::StrCat(RenderProgress(progress, cli.err), "\n"));
    }
  };
  const absl::StatusOr<v1::CalibrationComplete> complete = cli.MakeClient().CalibrateModel(
      request, cli.Options(), [&](const v1::CalibrateModelResponse& response) {
        if (response.has_started()) job_id = response.started().job_id();
        if (cli.json) return cli.WriteJson(response);
        if (response.has_started() && response.started().joined()) {
          cli.WriteSide("joined a calibration that was running already\n");
        }
        if (response.has_progress()) show(response.progress());
      });
  if (line_is_open) cli.WriteSide("\n");
  if (!complete.ok()) {
    const int code = cli.CallFailed(complete.status());
    const bool left = code == kExitInterrupted || absl::IsDeadlineExceeded(complete.status());
    if (left && flags.detach && !job_id.empty() && !cli.json) {
      cli.WriteSide(absl::StrCat("  The measurement goes on as ", job_id,
                                 ".\n  See how far it is: ripplekv calibrations\n"));
    }
    return code;
  }
  if (!cli.json) cli.Write(absl::StrCat(RenderCalibration(*complete), "\n"));
  return kExitOk;
}

}  // namespace

void AddCalibrate(CLI::App& app, Cli& cli) {
  AddCommand<CalibrateFlags>(
      app, cli, "calibrate", "Measure how much each layer's cache matters to the model",
      "  ripplekv calibrate\n"
      "  ripplekv calibrate --examples 48 --seed 1 --detach\n"
      "  ripplekv calibrate --text-file a.txt --text-file b.txt --examples 2 --force\n",
      AddFlags, Run);
}

}  // namespace ripplekv
