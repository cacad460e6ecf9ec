#include "client/score_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_split.h"
#include "client/utf8.h"
#include "tests/client/message_builders.h"

namespace ripplekv {
namespace {

using testing::HasSubstr;
using testing::Not;

void AddScore(v1::ScoreResponse& response, const std::vector<std::string>& tokens, double logprob,
              bool greedy) {
  v1::ContinuationScore& score = *response.add_continuations();
  for (const std::string& token : tokens) score.add_tokens()->set_token(token);
  score.set_logprob(logprob);
  score.set_greedy(greedy);
}

TEST(ScoreViewTest, ALineForEachWithItsMean) {
  v1::ScoreResponse response;
  AddScore(response, {" Par", "is"}, -1.5, true);
  AddScore(response, {" Rome", "\n", "\xF0\x9F"}, -12.75, false);
  EXPECT_EQ(RenderScores(response, {.width = 80}),
            "      total   per token  greedy  tokens  continuation\n"
            "    -1.5000     -0.7500  yes          2  ' Paris'\n"
            "   -12.7500     -4.2500  no           3  ' Rome\\n\\xF0\\x9F'\n");
}

TEST(ScoreViewTest, WithAReferenceItsFidelityToo) {
  v1::ScoreResponse response;
  AddScore(response, {" Par", "is"}, -1.5, true);
  response.mutable_continuations(0)->set_mean_kl(0.0123456);
  response.mutable_continuations(0)->mutable_tokens(0)->set_top1_agrees(true);
  response.mutable_continuations(0)->mutable_tokens(1)->set_top1_agrees(false);
  EXPECT_EQ(RenderScores(response, {.width = 80}),
            "      total   per token  greedy  tokens     mean KL  same top  continuation\n"
            "    -1.5000     -0.7500  yes          2    0.012346    50.0 %  ' Paris'\n");
}

TEST(ScoreViewTest, TheLikeliestStandsOutAndWidthsAreKept) {
  v1::ScoreResponse response;
  AddScore(response, {std::string(200, 'x')}, -3, false);
  AddScore(response, {"y"}, -2, false);
  const std::string text = RenderScores(response, {.color = true, .width = 60});
  EXPECT_THAT(
      text,
      HasSubstr(Terminal{.color = true}.Bold("    -2.0000     -2.0000  no           1  'y'")));
  for (const absl::string_view line : absl::StrSplit(RenderScores(response, {.width = 60}), '\n')) {
    EXPECT_LE(Columns(line), 60);
  }
}

TEST(ScoreViewTest, TheSummarySaysWhatItTook) {
  v1::ScoreResponse response;
  response.mutable_usage()->set_context_tokens(4000);
  response.mutable_usage()->set_prompt_tokens(96);
  response.mutable_usage()->set_output_tokens(50);
  *response.mutable_cache() = TestComplete().cache();
  response.mutable_timings()->set_prefill_seconds(2);
  response.mutable_timings()->set_decode_seconds(0.5);
  const std::string summary = RenderScoreSummary(response, {.utf8 = true, .width = 120});
  EXPECT_THAT(summary, HasSubstr("context 4,000 · prompt 96 · continuations 50\n"));
  EXPECT_THAT(summary, HasSubstr("prefill 48.0 tokens/s · scored 100 tokens/s\n"));
  EXPECT_THAT(summary, HasSubstr("mean 829 of 4,096 a layer"));
  EXPECT_THAT(summary, HasSubstr("18.2 MiB of 90.0 MiB\n"));
  EXPECT_THAT(RenderScoreSummary({}, {}), Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace ripplekv
