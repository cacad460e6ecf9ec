#include "client/bar_chart.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "client/format.h"
#include "client/utf8.h"

namespace ripplekv {
namespace {

// Narrower bars say nothing: the texts are shortened first.
constexpr int kComfortableCells = 16;
constexpr int kMinCells = 4;
constexpr double kReadableRatio = 20;

std::vector<double> Positive(const std::vector<double>& values) {
  std::vector<double> positive;
  for (const double value : values) {
    if (value > 0 && std::isfinite(value)) positive.push_back(value);
  }
  std::sort(positive.begin(), positive.end());
  return positive;
}

// `cells` columns; `mark` is a column or -1.
std::string Bar(double share, int cells, int mark, bool utf8) {
  constexpr const char* kEighths[] = {" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int steps_a_cell = utf8 ? 8 : 1;
  int steps = static_cast<int>(std::lround(share * cells * steps_a_cell));
  if (share > 0) steps = std::max(steps, 1);
  std::string bar;
  for (int cell = 0; cell < cells; ++cell) {
    const int filled = std::clamp(steps - cell * steps_a_cell, 0, steps_a_cell);
    if (cell == mark) {
      const bool covered = filled == steps_a_cell;
      bar += utf8 ? (covered ? "┃" : "│") : (covered ? "+" : "|");
    } else if (filled == steps_a_cell) {
      bar += utf8 ? "█" : "#";
    } else {
      bar += kEighths[filled];
    }
  }
  return bar;
}

}  // namespace

double BarScale::Share(double value) const {
  if (!(value > low) || !(high > low)) return 0;
  const double share = log ? (std::log(value) - std::log(low)) / (std::log(high) - std::log(low))
                           : (value - low) / (high - low);
  return std::clamp(share, 0.0, 1.0);
}

std::string BarScale::ToString() const {
  return absl::StrCat(log ? "logarithmic" : "linear", " scale from ", FormatNumber(low, 3), " to ",
                      FormatNumber(high, 3));
}

BarScale LinearScale(const std::vector<double>& values) {
  const std::vector<double> positive = Positive(values);
  return {.log = false, .low = 0, .high = positive.empty() ? 0 : positive.back()};
}

BarScale LogScale(const std::vector<double>& values) {
  const std::vector<double> positive = Positive(values);
  // Half of the least denormal would be 0.
  if (positive.empty() || positive.front() / 2 <= 0) return LinearScale(values);
  return {.log = true, .low = positive.front() / 2, .high = positive.back()};
}

BarScale ReadableScale(const std::vector<double>& values) {
  const std::vector<double> positive = Positive(values);
  if (positive.empty()) return LinearScale(values);
  const double median = positive[positive.size() / 2];
  return positive.back() / median > kReadableRatio ? LogScale(values) : LinearScale(values);
}

std::string RenderBarChart(const std::vector<BarChartRow>& rows, const BarScale& scale,
                           const BarChartLook& look) {
  int labels = 0, texts = 0, short_texts = 0;
  for (const BarChartRow& row : rows) {
    labels = std::max(labels, Columns(row.label));
    texts = std::max(texts, Columns(row.text));
    short_texts = std::max(short_texts, Columns(row.short_text));
  }
  const bool is_short = look.width - labels - texts - 2 < kComfortableCells;
  if (is_short) texts = short_texts;
  const int cells = std::max(look.width - labels - texts - 2, kMinCells);
  int mark = -1;
  if (look.mark && scale.high > scale.low) {
    mark = std::min(static_cast<int>(scale.Share(*look.mark) * cells), cells - 1);
  }
  std::string chart;
  for (const BarChartRow& row : rows) {
    std::string line = absl::StrCat(std::string(labels - Columns(row.label), ' '), row.label, " ",
                                    Bar(scale.Share(row.value), cells, mark, look.utf8), " ",
                                    is_short ? row.short_text : row.text);
    absl::StrAppend(&chart, TakeColumns(line, look.width), "\n");
  }
  return chart;
}

}  // namespace ripplekv
