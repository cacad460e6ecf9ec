#include "client/generation_summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_split.h"
#include "client/utf8.h"
#include "tests/client/message_builders.h"

namespace ripplekv {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(GenerationSummaryTest, SaysEveryFigure) {
  v1::GenerateComplete complete = TestComplete();
  complete.set_next_token_kl(0.0125);
  const std::string summary = RenderSummary(complete, {.utf8 = true, .width = 120});
  EXPECT_THAT(summary, HasSubstr("prompt 4,096 · output 57 · end of text\n"));
  EXPECT_THAT(summary, HasSubstr("prefill 2,048 tokens/s"));
  EXPECT_THAT(summary, HasSubstr("decode 70.0 tokens/s"));  // 56 tokens after the first, in 0.8 s
  EXPECT_THAT(summary, HasSubstr("first token after 2.25 s"));
  // 800 + 2 l for l = 0..29 is 829 in the mean.
  EXPECT_THAT(summary,
              HasSubstr("mean 829 of 4,096 a layer · least 800 (layer 0) · most 858 (layer 29)"));
  EXPECT_THAT(summary, HasSubstr("22.0 MiB during the prefill"));
  EXPECT_THAT(summary, HasSubstr("next_token_kl 0.0125 nats"));
  EXPECT_THAT(summary, HasSubstr("seed      7\n"));
  // 30 * 4096 * 768 bytes are 90 MiB; 30 * 829 * 768 are 18.2 MiB, 20.2 %.
  EXPECT_THAT(summary, HasSubstr("90.0 MiB\n"));
  EXPECT_THAT(summary, HasSubstr("18.2 MiB, 20.2 %\n"));
  EXPECT_THAT(summary, Not(HasSubstr("queued")));
}

TEST(GenerationSummaryTest, SaysWhatTheContextHeldAndHowOftenItWasCompacted) {
  v1::GenerateComplete complete = TestComplete();
  complete.mutable_usage()->set_prompt_tokens(96);
  complete.mutable_usage()->set_context_tokens(4000);
  complete.set_compactions(60);
  complete.set_next_token_kl(0.0125);
  complete.set_next_token_kl_floor(0.00025);
  const std::string summary = RenderSummary(complete, {.utf8 = true, .width = 120});
  EXPECT_THAT(summary, HasSubstr("context 4,000 · prompt 96 · output 57"));
  EXPECT_THAT(summary, HasSubstr("prefill 48.0 tokens/s"));  // the context was not prefilled again
  EXPECT_THAT(summary, HasSubstr("mean 829 of 4,096 a layer"));
  EXPECT_THAT(summary, HasSubstr("compacted back 60 times"));
  EXPECT_THAT(summary, HasSubstr("next_token_kl 0.0125 nats · floor 0.00025"));
  EXPECT_THAT(RenderShortSummary(complete, {.utf8 = true, .width = 100}),
              testing::StartsWith("context 4,000 + 96 tokens in, 57 out"));
}

TEST(GenerationSummaryTest, SaysWhatStopped) {
  v1::GenerateComplete complete = TestComplete();
  complete.set_finish_reason(v1::FINISH_REASON_STOP_STRING);
  complete.set_stop_string("\n\n");
  EXPECT_THAT(RenderSummary(complete, {}), HasSubstr("stop string '\\n\\n'"));
  complete.set_finish_reason(v1::FINISH_REASON_STOP_TOKEN);
  complete.set_stop_token_id(198);
  EXPECT_THAT(RenderSummary(complete, {}), HasSubstr("stop token 198"));
  complete.clear_matched_stop();
  complete.set_finish_reason(v1::FINISH_REASON_MAX_TOKENS);
  EXPECT_THAT(RenderSummary(complete, {}), HasSubstr("max tokens"));
}

TEST(GenerationSummaryTest, EvenBudgetsAreOneNumber) {
  v1::GenerateComplete complete = TestComplete();
  for (auto& layer : *complete.mutable_cache()->mutable_layers()) layer.set_positions_kept(4096);
  EXPECT_THAT(RenderSummary(complete, {}), HasSubstr("4,096 of 4,096 a layer\n"));
}

TEST(GenerationSummaryTest, SaysWhatTheLayersStore) {
  v1::GenerateComplete complete = TestComplete();
  for (auto& layer : *complete.mutable_cache()->mutable_layers()) {
    layer.set_positions_kept(4096);
    layer.set_key_type(v1::KV_TYPE_INT8);
    layer.set_value_type(v1::KV_TYPE_INT8);
  }
  EXPECT_THAT(RenderSummary(complete, {.utf8 = true}), HasSubstr("a layer · as int8\n"));
  for (int l : {0, 3, 4}) {
    complete.mutable_cache()->mutable_layers(l)->set_value_type(v1::KV_TYPE_INT4);
  }
  complete.mutable_cache()->mutable_layers(29)->set_key_type(v1::KV_TYPE_BF16);
  complete.mutable_cache()->mutable_layers(29)->set_value_type(v1::KV_TYPE_BF16);
  EXPECT_THAT(RenderSummary(complete, {.utf8 = true, .width = 200}),
              HasSubstr("a layer · as int8:int4 in 3, int8 in 26, bf16 in 1 layers\n"));
}

TEST(GenerationSummaryTest, ZeroesGiveNoNumbersThatAreNone) {
  for (const v1::GenerateComplete& complete : {v1::GenerateComplete(), [] {
                                                 v1::GenerateComplete one = TestComplete();
                                                 one.mutable_usage()->set_output_tokens(1);
                                                 one.mutable_timings()->Clear();
                                                 return one;
                                               }()}) {
    for (const std::string& text :
         {RenderSummary(complete, {.utf8 = true}), RenderShortSummary(complete, {.utf8 = true})}) {
      EXPECT_THAT(text, Not(HasSubstr("nan")));
      EXPECT_THAT(text, Not(HasSubstr("inf")));
      EXPECT_THAT(text, testing::AnyOf(HasSubstr("decode -"), testing::EndsWith("· -")));
    }
  }
}

TEST(GenerationSummaryTest, EveryWidthIsKept) {
  v1::GenerateComplete complete = TestComplete();
  complete.set_next_token_kl(0.0125);
  for (int width = 40; width <= 200; ++width) {
    for (const bool utf8 : {false, true}) {
      const Terminal terminal = {.utf8 = utf8, .width = width};
      for (const absl::string_view line : absl::StrSplit(RenderSummary(complete, terminal), '\n')) {
        ASSERT_LE(Columns(line), width) << line;
      }
      ASSERT_LE(Columns(RenderShortSummary(complete, terminal)), width);
    }
  }
}

TEST(GenerationSummaryTest, ShortSummaryIsOneLine) {
  EXPECT_EQ(RenderShortSummary(TestComplete(), {.utf8 = true, .width = 100}),
            "4,096 tokens in, 57 out · cache 18.2 MiB of 90.0 MiB · 70.0 tokens/s");
}

TEST(GenerationSummaryTest, LogprobsShowBytesAndTheOthers) {
  v1::GenerateChunk chunk;
  v1::TokenLogprob& token = *chunk.add_logprobs();
  token.set_token(" the\n");
  token.set_logprob(-0.25);
  v1::TopLogprob& top = *token.add_top();
  top.set_token("\xF0\x9F");
  top.set_logprob(-1.5);
  *token.add_top() = top;
  EXPECT_EQ(RenderLogprobs(chunk.logprobs()),
            "  -0.2500  ' the\\n'   among '\\xF0\\x9F' -1.5000, '\\xF0\\x9F' -1.5000\n");
}

}  // namespace
}  // namespace ripplekv
