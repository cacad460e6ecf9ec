#include "calibration/size_examples.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <string>
#include <vector>

namespace ripplekv {
namespace {

using testing::ElementsAre;

std::vector<int32_t> Tokens(int32_t first, size_t count) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::vector<int32_t> Joined(std::vector<std::vector<int32_t>> parts) {
  std::vector<int32_t> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// Examples of three tokens; those of the sizes of `prompt` + 1.
CalibrationSettings Settings(int examples, int size_examples, int64_t prompt) {
  CalibrationSettings settings{.examples = examples, .prefix_tokens = 2, .window_tokens = 1};
  settings.sizes.examples = size_examples;
  settings.sizes.prompt_tokens = {prompt - 1, prompt};
  return settings;
}

TEST(SizeExamplesTest, EndWhereTextsEndFromTheTextAfterTheLastExamples) {
  const std::vector<std::vector<int32_t>> texts = {Tokens(100, 7), Tokens(200, 10), Tokens(300, 2),
                                                   Tokens(400, 4)};
  // Two examples: of texts 0 and 1. Text 2 is too short and gets what stands before it.
  const auto examples = MakeSizeExamples(texts, Settings(2, 4, 4));
  ASSERT_TRUE(examples.ok()) << examples.status();
  EXPECT_THAT(*examples, ElementsAre(Joined({Tokens(207, 3), Tokens(300, 2)}),
                                     Joined({Tokens(301, 1), Tokens(400, 4)}), Tokens(102, 5),
                                     Tokens(205, 5)));
  // The last of three examples is of text 3: around, to text 0.
  EXPECT_THAT(*MakeSizeExamples(texts, Settings(3, 1, 4)), ElementsAre(Tokens(102, 5)));
  EXPECT_TRUE(MakeSizeExamples(texts, Settings(3, 0, 4))->empty());
}

TEST(SizeExamplesTest, LongPromptsSpanSeveralTexts) {
  const std::vector<std::vector<int32_t>> texts = {Tokens(100, 4), Tokens(200, 3), Tokens(300, 5)};
  EXPECT_THAT(*MakeSizeExamples(texts, Settings(1, 2, 9)),
              ElementsAre(Joined({Tokens(302, 3), Tokens(100, 4), Tokens(200, 3)}),
                          Joined({Tokens(102, 2), Tokens(200, 3), Tokens(300, 5)})));
}

TEST(SizeExamplesTest, MoreThanTextsAreEvenlySpreadOverWhatTheyHaveBehindAPrompt) {
  // Behind 3 + 1 tokens: 8, and 2.
  const std::vector<std::vector<int32_t>> texts = {Tokens(100, 12), Tokens(200, 6)};
  const auto examples = MakeSizeExamples(texts, Settings(2, 4, 4));
  ASSERT_TRUE(examples.ok()) << examples.status();
  EXPECT_THAT(*examples,
              ElementsAre(Tokens(107, 5), Tokens(201, 5), Tokens(103, 5), Tokens(200, 5)));
  // As many as there is room for: text 1 has no more than two.
  const auto most = MakeSizeExamples(texts, Settings(2, 10, 4));
  ASSERT_TRUE(most.ok()) << most.status();
  std::multiset<int32_t> last;
  for (const auto& example : *most) last.insert(example.back());
  EXPECT_THAT(last, ElementsAre(104, 105, 106, 107, 108, 109, 110, 111, 204, 205));
  const absl::Status status = MakeSizeExamples(texts, Settings(2, 11, 4)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "size_examples is 11: the corpus's 2 texts give 10 of 4 + window_tokens = 5 tokens; "
            "ask for fewer examples or shorter size_prompt_tokens, or give more or longer texts");
}

TEST(SizeExamplesTest, WindowsLieWithinATextAndAllTextsTogetherMustFillAPrompt) {
  const std::vector<std::vector<int32_t>> texts = {Tokens(100, 6), Tokens(200, 1)};
  CalibrationSettings settings = Settings(1, 1, 4);
  settings.window_tokens = 2;
  // Text 1 comes first and is shorter than a window.
  EXPECT_THAT(*MakeSizeExamples(texts, settings), ElementsAre(Tokens(100, 6)));
  settings.sizes.prompt_tokens = {6};
  EXPECT_EQ(MakeSizeExamples(texts, settings).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeSizeExamples({}, settings).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ripplekv
