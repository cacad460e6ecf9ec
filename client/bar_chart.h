#pragma once

#include <optional>
#include <string>
#include <vector>

namespace ripplekv {

// Maps values to the shares of a full bar.
struct BarScale {
  bool log = false;
  double low = 0;   // an empty bar
  double high = 0;  // a full bar

  // 0 to 1. Values at or below `low`, NaN included, give 0.
  double Share(double value) const;
  // "linear scale from 0 to 0.0123"
  std::string ToString() const;
};

// From 0 to the greatest value.
BarScale LinearScale(const std::vector<double>& values);
// From half the least positive value to the greatest; the linear scale where nothing is positive.
// Zero has no bar.
BarScale LogScale(const std::vector<double>& values);
// The logarithmic one where the greatest value is over 20 times the median positive one, else the
// linear one: on a linear scale such bars would be too short to be told apart.
BarScale ReadableScale(const std::vector<double>& values);

struct BarChartRow {
  std::string label;
  double value = 0;
  std::string text;        // after the bar
  std::string short_text;  // instead of `text` where the chart is narrow
};

struct BarChartLook {
  int width = 80;  // columns of a line at most; at least 20
  bool utf8 = true;
  std::optional<double> mark;  // a value that every bar's line marks
};

// One line a row, each ended by a line feed: the label to the right of its column, the bar, the
// text. Every value above the scale's low end shows at least the smallest step of a bar: an eighth
// of a column, or a column in ASCII.
std::string RenderBarChart(const std::vector<BarChartRow>& rows, const BarScale& scale,
                           const BarChartLook& look);

}  // namespace ripplekv
