#include "server/engine/stop_matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace ripplekv {
namespace {

struct Outcome {
  std::string text;
  int matched = -1;
  bool operator==(const Outcome&) const = default;
};

Outcome Feed(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  StopMatcher matcher(stops);
  Outcome outcome;
  for (const std::string& piece : pieces) {
    auto result = matcher.Push(piece, true);
    outcome.text += result.text;
    if (result.matched >= 0) {
      outcome.matched = result.matched;
      return outcome;
    }
  }
  outcome.text += matcher.Flush();
  return outcome;
}

// Plainly: the shortest prefix that ends with a stop string; of several there the longest.
Outcome Reference(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    int best = -1;
    for (size_t i = 0; i < stops.size(); ++i) {
      if (stops[i].size() > end ||
          text.compare(end - stops[i].size(), stops[i].size(), stops[i]) != 0)
        continue;
      if (best < 0 || stops[i].size() > stops[static_cast<size_t>(best)].size())
        best = static_cast<int>(i);
    }
    if (best >= 0) return {text.substr(0, end - stops[static_cast<size_t>(best)].size()), best};
  }
  return {text, -1};
}

TEST(StopMatcherTest, EqualsTheReferenceHoweverTheTextIsCut) {
  std::mt19937 random(5);
  int matches = 0;
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::string> stops;
    for (size_t i = 0, n = random() % 4; i < n; ++i) {
      std::string stop;
      for (size_t j = 0, len = 1 + random() % 5; j < len; ++j)
        stop += static_cast<char>('a' + random() % 3);
      if (std::find(stops.begin(), stops.end(), stop) == stops.end()) stops.push_back(stop);
    }
    std::string text;
    std::vector<std::string> pieces;
    for (size_t i = 0, n = random() % 10; i < n; ++i) {
      std::string piece;
      for (size_t j = 0, len = random() % 6; j < len; ++j)
        piece += static_cast<char>('a' + random() % 4);
      text += piece;
      pieces.push_back(piece);
    }
    const Outcome got = Feed(stops, pieces);
    ASSERT_EQ(got, Reference(stops, text)) << "round " << round;
    matches += got.matched >= 0;
    for (const std::string& stop : stops) ASSERT_EQ(got.text.find(stop), std::string::npos);
  }
  EXPECT_GT(matches, 1000);
}

TEST(StopMatcherTest, HoldsBackOnlyWhatMayBecomeAStopString) {
  StopMatcher matcher({"STOP", "TOPAZ"});
  EXPECT_EQ(matcher.Push("go ST", true).text, "go ");
  EXPECT_EQ(matcher.Push("A", true).text, "STA");
  EXPECT_EQ(matcher.Push("STOPA", false).text, "S");  // "TOPA" may still become TOPAZ
  const auto result = matcher.Push("Zebra", true);
  EXPECT_EQ(result.text, "");
  EXPECT_EQ(result.matched, 1);
}

TEST(StopMatcherTest, StringsCompletedBeforeStoppingIsAllowedAreText) {
  StopMatcher matcher({"ab"});
  EXPECT_EQ(matcher.Push("xab", false).text, "xab");
  EXPECT_EQ(matcher.Push("a", false).text, "");
  const auto result = matcher.Push("b", true);
  EXPECT_EQ(result.text, "");
  EXPECT_EQ(result.matched, 0);
}

TEST(StopMatcherTest, WithoutStopStringsNothingIsHeld) {
  StopMatcher matcher({});
  EXPECT_EQ(matcher.Push("anything", true).text, "anything");
  EXPECT_EQ(matcher.Flush(), "");
}

}  // namespace
}  // namespace ripplekv
