#include "client/progress_line.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/format.h"
#include "client/utf8.h"

namespace ripplekv {
namespace {

constexpr int kMaxCells = 40;
constexpr int kMinCells = 6;

}  // namespace

std::string RenderProgress(const ProgressState& progress, const Terminal& terminal) {
  const double fraction =
      std::isnan(progress.fraction) ? 0 : std::clamp(progress.fraction, 0.0, 1.0);
  const std::string begin = "calibrating ";
  std::string end =
      absl::StrFormat("%d/%d examples %3d %%  %s", progress.done, progress.total,
                      static_cast<int>(fraction * 100), FormatClock(progress.elapsed_seconds));
  if (fraction > 0 && fraction < 1) {
    const double left = progress.elapsed_seconds * (1 - fraction) / fraction;
    absl::StrAppend(&end, ", ", FormatClock(left), " left");
  }
  // The last column stays free: a terminal may wrap a line that fills it.
  const int width = terminal.width - 1;
  const int cells = std::min(width - Columns(begin) - Columns(end) - 1, kMaxCells);
  if (!terminal.interactive || cells < kMinCells) return TakeColumns(begin + end, width);
  const int filled = static_cast<int>(fraction * cells);
  std::string bar;
  for (int cell = 0; cell < cells; ++cell) {
    bar += cell < filled ? (terminal.utf8 ? "█" : "#") : (terminal.utf8 ? "░" : ".");
  }
  return absl::StrCat(begin, bar, " ", end);
}

bool ProgressPace::Due(const ProgressState& progress, double now_seconds) {
  const bool finished = progress.fraction >= 1;
  const bool due = !written_ || (finished && !finished_) ||
                   (!finished && now_seconds - last_seconds_ >= interval_seconds_);
  if (due) {
    written_ = true;
    finished_ = finished;
    last_seconds_ = now_seconds;
  }
  return due;
}

}  // namespace ripplekv
