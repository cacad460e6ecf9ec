#include "client/calibration_view.h"

#include <algorithm>
#include <array>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "client/format.h"
#include "client/names.h"
#include "client/utf8.h"

namespace ripplekv {
namespace {

constexpr size_t kColumns = 5;
using Row = std::array<std::string, kColumns>;

std::string State(const v1::Calibration& calibration) {
  const bool detached =
      calibration.detached() && calibration.state() == v1::CALIBRATION_STATE_RUNNING;
  return absl::StrCat(NameOf(calibration.state()), detached ? ", detached" : "");
}

std::string Examples(const v1::CalibrationProgress& progress) {
  return absl::StrCat(FormatCount(progress.examples_done()), "/",
                      FormatCount(progress.examples_total()));
}

std::string Progress(const v1::CalibrationProgress& progress) {
  return absl::StrFormat("%s %3d %%  %s", Examples(progress),
                         static_cast<int>(std::clamp(progress.fraction(), 0.0, 1.0) * 100),
                         FormatClock(progress.elapsed_seconds()));
}

std::string Started(const v1::Calibration& calibration) {
  if (!calibration.has_started_at()) return "";
  return absl::FormatTime("%Y-%m-%d %H:%M UTC",
                          absl::FromUnixSeconds(calibration.started_at().seconds()),
                          absl::UTCTimeZone());
}

std::string Line(const Row& row, const std::array<int, kColumns>& widths) {
  std::string line;
  for (size_t i = 0; i < kColumns; ++i) {
    line += row[i];
    if (i + 1 < kColumns) line += std::string(widths[i] + 2 - Columns(row[i]), ' ');
  }
  return line;
}

}  // namespace

std::string RenderCalibrations(const std::vector<v1::Calibration>& calibrations,
                               const Terminal& terminal) {
  if (calibrations.empty()) return "";
  std::vector<Row> rows = {{"job", "state", "progress", "started", "profile"}};
  for (const v1::Calibration& calibration : calibrations) {
    rows.push_back({WithoutControls(calibration.job_id()), State(calibration),
                    Progress(calibration.progress()), Started(calibration),
                    ShortId(calibration.profile_id())});
  }
  std::array<int, kColumns> widths{};
  for (const Row& row : rows) {
    for (size_t i = 0; i < kColumns; ++i) widths[i] = std::max(widths[i], Columns(row[i]));
  }
  std::string text = absl::StrCat(terminal.Dim(Line(rows[0], widths)), "\n");
  for (size_t i = 0; i < calibrations.size(); ++i) {
    absl::StrAppend(&text, Line(rows[i + 1], widths), "\n");
    if (!calibrations[i].has_error()) continue;
    const v1::CalibrationError& error = calibrations[i].error();
    absl::StrAppend(&text, "  ",
                    absl::StatusCodeToString(static_cast<absl::StatusCode>(error.code())), ": ",
                    WithoutControls(error.message()), "\n");
  }
  return text;
}

std::string RenderCancelled(const v1::Calibration& calibration) {
  return absl::StrCat("Cancelled ", WithoutControls(calibration.job_id()), " after ",
                      Examples(calibration.progress()), " examples; nothing is stored of it.");
}

}  // namespace ripplekv
