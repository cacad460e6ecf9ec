#include "server/observe/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace ripplekv {
namespace {

using testing::ElementsAre;

TEST(Log, WritesOneLineAnEvent) {
  std::vector<std::string> lines;
  Log log(LogLevel::kInfo, LogFormat::kText, &lines);
  log.Info("started", {{"listen", "127.0.0.1:1"}, {"threads", 2}, {"share", 0.25}, {"ok", true}});
  log.Warning("odd",
              {{"path", "a b"}, {"empty", ""}, {"text", "two\nlines \"quoted\""}, {"id", "a=b"}});
  EXPECT_THAT(
      lines,
      ElementsAre(
          "info started listen=127.0.0.1:1 threads=2 share=0.25 ok=true",
          "warning odd path=\"a b\" empty=\"\" text=\"two\\nlines \\\"quoted\\\"\" id=\"a=b\""));
}

TEST(Log, LeavesNothingToTerminalsAndReadersOfLines) {
  // Delete, CSI, next line, line separator, right-to-left override.
  const std::string caller = "Zo\u00eb\x7f\u009b31m\u0085\u2028\u202e";
  const std::string escaped = "\"Zo\\u00eb\\u007f\\u009b31m\\u0085\\u2028\\u202e\"";
  std::vector<std::string> lines;
  Log(LogLevel::kInfo, LogFormat::kText, &lines).Info("call", {{"caller", caller}});
  Log(LogLevel::kInfo, LogFormat::kJson, &lines).Info("call", {{"caller", caller}});
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0], "info call caller=" + escaped);
  EXPECT_THAT(lines[1], testing::HasSubstr("\"caller\":" + escaped));
  EXPECT_EQ(nlohmann::json::parse(lines[1])["caller"], caller);
}

TEST(Log, LeavesOutWhatIsLessSevere) {
  std::vector<std::string> lines;
  Log log(LogLevel::kWarning, LogFormat::kText, &lines);
  log.Debug("a");
  log.Info("b");
  log.Warning("c");
  log.Error("d");
  EXPECT_THAT(lines, ElementsAre("warning c", "error d"));
}

TEST(Log, WritesJsonThatReadsBack) {
  std::vector<std::string> lines;
  Log log(LogLevel::kDebug, LogFormat::kJson, &lines);
  log.Error("failed", {{"error", "bad \"thing\"\n\xff"},
                       {"count", uint64_t{18446744073709551615u}},
                       {"negative", -3},
                       {"ratio", 0.1},
                       {"nan", std::nan("")},
                       {"flag", false}});
  ASSERT_EQ(lines.size(), 1u);
  const nlohmann::json parsed = nlohmann::json::parse(lines[0]);
  EXPECT_EQ(parsed["level"], "error");
  EXPECT_EQ(parsed["event"], "failed");
  EXPECT_EQ(parsed["error"], "bad \"thing\"\n\xEF\xBF\xBD");
  EXPECT_EQ(parsed["count"], uint64_t{18446744073709551615u});
  EXPECT_EQ(parsed["negative"], -3);
  EXPECT_EQ(parsed["ratio"], 0.1);
  EXPECT_TRUE(parsed["nan"].is_null());
  EXPECT_EQ(parsed["flag"], false);
}

}  // namespace
}  // namespace ripplekv
