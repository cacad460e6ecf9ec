#include "client/bar_chart.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "client/utf8.h"

namespace ripplekv {
namespace {

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  EXPECT_EQ(lines.back(), "") << "the last line ends with a line feed";
  lines.pop_back();
  return lines;
}

std::vector<BarChartRow> Rows(const std::vector<double>& values) {
  std::vector<BarChartRow> rows;
  for (size_t i = 0; i < values.size(); ++i) {
    rows.push_back({std::to_string(i), values[i], "0.01234 ± 0.00012", "0.01234"});
  }
  return rows;
}

TEST(BarChartTest, BarsAreProportionalInEighths) {
  // Labels 1, texts 1: 20 - 1 - 1 - 2 = 16 cells.
  const std::vector<BarChartRow> rows = {
      {"a", 4, "4", "4"}, {"b", 2, "2", "2"}, {"c", 1.03125, "1", "1"}, {"d", 0, "0", "0"}};
  EXPECT_EQ(RenderBarChart(rows, LinearScale({4, 2, 1.03125, 0}),
                           {.width = 20, .utf8 = true, .mark = {}}),
            "a ████████████████ 4\n"
            "b ████████         2\n"
            "c ████▏            1\n"
            "d                  0\n");
  EXPECT_EQ(RenderBarChart(rows, LinearScale({4, 2, 1.03125, 0}),
                           {.width = 20, .utf8 = false, .mark = {}}),
            "a ################ 4\n"
            "b ########         2\n"
            "c ####             1\n"
            "d                  0\n");
}

TEST(BarChartTest, TheMarkIsSeenInAndBesideBars) {
  const std::vector<BarChartRow> rows = {{"a", 4, "4", "4"}, {"b", 1, "1", "1"}};
  EXPECT_EQ(RenderBarChart(rows, LinearScale({4, 1}), {.width = 20, .utf8 = true, .mark = 2.0}),
            "a ████████┃███████ 4\n"
            "b ████    │        1\n");
  EXPECT_EQ(RenderBarChart(rows, LinearScale({4, 1}), {.width = 20, .utf8 = false, .mark = 4.0}),
            "a ###############+ 4\n"
            "b ####           | 1\n");
}

TEST(BarChartTest, EveryWidthIsKeptAndFilled) {
  const std::vector<double> values = {0.3, 0.0001, 0, 0.02, 0.021, 0.5};
  for (int width = 40; width <= 200; ++width) {
    for (const bool utf8 : {false, true}) {
      const std::string chart = RenderBarChart(Rows(values), LinearScale(values),
                                               {.width = width, .utf8 = utf8, .mark = 0.1});
      const std::vector<std::string> lines = Lines(chart);
      ASSERT_EQ(lines.size(), values.size());
      for (const std::string& line : lines) {
        ASSERT_EQ(FirstInvalidUtf8(line), line.size());
        ASSERT_EQ(Columns(line), width) << line;
      }
      // 40 columns leave 20 cells beside the long text.
      EXPECT_TRUE(absl::StrContains(lines[0], "±"));
    }
  }
}

TEST(BarChartTest, NarrowChartsShortenTheTextsFirst) {
  const std::vector<double> values = {0.3, 0.1};
  const std::vector<std::string> lines = Lines(
      RenderBarChart(Rows(values), LinearScale(values), {.width = 30, .utf8 = true, .mark = {}}));
  for (const std::string& line : lines) {
    EXPECT_EQ(Columns(line), 30);
    EXPECT_FALSE(absl::StrContains(line, "±"));
    EXPECT_TRUE(absl::EndsWith(line, " 0.01234"));
  }
}

TEST(BarChartTest, SmallValuesAreSeenAndZeroIsNot) {
  const std::vector<double> values = {1000, 0.001, 0};
  const std::vector<std::string> lines = Lines(
      RenderBarChart(Rows(values), LinearScale(values), {.width = 60, .utf8 = true, .mark = {}}));
  EXPECT_TRUE(absl::StrContains(lines[1], "▏"));
  for (const char* block : {"▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"}) {
    EXPECT_FALSE(absl::StrContains(lines[2], block));
  }
}

TEST(BarChartTest, ConstantProfilesFillEveryBar) {
  for (const BarScale& scale : {LinearScale({0.5, 0.5}), ReadableScale({0.5, 0.5})}) {
    EXPECT_EQ(RenderBarChart({{"0", 0.5, "x", "x"}, {"1", 0.5, "x", "x"}}, scale,
                             {.width = 20, .utf8 = true, .mark = {}}),
              "0 ████████████████ x\n1 ████████████████ x\n");
  }
}

TEST(BarChartTest, AllZeroAndNothingFiniteHaveNoBarsAndNoMark) {
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  for (const std::vector<double>& values :
       {std::vector<double>{0, 0}, std::vector<double>{nan, -infinity}}) {
    for (const BarScale& scale : {LinearScale(values), LogScale(values), ReadableScale(values)}) {
      EXPECT_EQ(RenderBarChart({{"0", values[0], "x", "x"}, {"1", values[1], "x", "x"}}, scale,
                               {.width = 20, .utf8 = true, .mark = 0.0}),
                "0                  x\n1                  x\n");
      EXPECT_FALSE(absl::StrContains(scale.ToString(), "nan"));
      EXPECT_FALSE(absl::StrContains(scale.ToString(), "inf"));
    }
  }
  EXPECT_EQ(RenderBarChart({}, LinearScale({}), {}), "");
}

TEST(BarScaleTest, LogScaleIsEvenInRatios) {
  const BarScale scale = LogScale({1e-4, 1e-2, 0});
  EXPECT_TRUE(scale.log);
  EXPECT_DOUBLE_EQ(scale.low, 5e-5);
  EXPECT_DOUBLE_EQ(scale.high, 1e-2);
  EXPECT_EQ(scale.Share(0), 0);
  EXPECT_EQ(scale.Share(1e-2), 1);
  EXPECT_EQ(scale.Share(5), 1);
  EXPECT_NEAR(scale.Share(1e-3) - scale.Share(1e-4), std::log(10) / std::log(200), 1e-12);
  EXPECT_EQ(scale.Share(std::nan("")), 0);
  EXPECT_EQ(scale.ToString(), "logarithmic scale from 5e-05 to 0.01");
}

TEST(BarScaleTest, DenormalsDoNotDivideByZero) {
  const double least = std::numeric_limits<double>::denorm_min();
  const BarScale scale = LogScale({least, 1});
  EXPECT_TRUE(std::isfinite(scale.Share(least)));
  EXPECT_EQ(scale.Share(1), 1);
}

TEST(BarScaleTest, ReadableIsLogarithmicOnlyWhereOneLayerOutweighsTheOthers) {
  EXPECT_FALSE(ReadableScale({0.1, 0.2, 0.9, 0.3}).log);
  EXPECT_TRUE(ReadableScale({0.1, 0.2, 9, 0.3}).log);
  EXPECT_FALSE(ReadableScale({0, 0, 0}).log);
  // Layers at zero have no bar on either scale: they say nothing about it.
  EXPECT_FALSE(ReadableScale({0, 0, 0, 0.1}).log);
}

}  // namespace
}  // namespace ripplekv
