#include "server/engine/output_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "model/unicode.h"
#include "tests/server/engine/test_model.h"

namespace ripplekv {
namespace {

class OutputStreamTest : public ::testing::Test {
 protected:
  void SetUp() override {
    tokenizer_ = TestTokenizer();
    ASSERT_NE(tokenizer_, nullptr);
    for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
      if (tokenizer_->IsEndOfGeneration(id)) end_of_text_.push_back(id);
    }
    ASSERT_FALSE(end_of_text_.empty());
  }
  std::vector<int32_t> Encode(const std::string& text) {
    auto ids = tokenizer_->Encode(text, SpecialTokens::kAsText);
    EXPECT_TRUE(ids.ok()) << ids.status();
    return *ids;
  }

  struct Outcome {
    std::string text;
    OutputStream::Piece last;
    size_t used = 0;
  };
  Outcome Feed(const StoppingParams& stopping, int32_t max_tokens,
               const std::vector<int32_t>& ids) {
    OutputStream stream(tokenizer_.get(), end_of_text_, stopping, max_tokens);
    Outcome outcome;
    for (int32_t id : ids) {
      outcome.last = stream.Push(id);
      EXPECT_EQ(FindInvalidUtf8(outcome.last.text), std::string_view::npos);
      outcome.text += outcome.last.text;
      ++outcome.used;
      if (outcome.last.finished.has_value()) break;
    }
    return outcome;
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<int32_t> end_of_text_;
};

TEST_F(OutputStreamTest, TextIsTheWholeDecodeWhateverTheTokens) {
  std::mt19937 random(2);
  for (int round = 0; round < 500; ++round) {
    std::vector<int32_t> ids;
    for (size_t i = 0, n = 1 + random() % 30; i < n; ++i) {
      const auto id =
          static_cast<int32_t>(random() % static_cast<uint32_t>(tokenizer_->vocab_size()));
      if (!tokenizer_->IsEndOfGeneration(id)) ids.push_back(id);
    }
    if (ids.empty()) continue;
    const Outcome outcome = Feed({}, static_cast<int32_t>(ids.size()), ids);
    EXPECT_EQ(outcome.last.finished, FinishReason::kMaxTokens);
    EXPECT_EQ(outcome.text, *tokenizer_->Decode(ids, /*skip_special=*/true));
  }
}

TEST_F(OutputStreamTest, StopStringsNeverLeakAndCutWhereTheyBegin) {
  const std::string text =
      "Once upon a time \xf0\x9f\x8c\x8a a wave \xe2\x80\x94 na\xc3\xafve, though \xe6\xb0\xb4 "
      "\xf0\x9f\x8c\x8a \xe2\x80\x94 "
      "met a lighthouse.\n\nUser: and then?\n\nAssistant: it went on.";
  const std::vector<int32_t> ids = Encode(text);
  std::mt19937 random(9);
  int stopped = 0;
  for (int round = 0; round < 1000; ++round) {
    StoppingParams stopping;
    for (size_t i = 0, n = 1 + random() % 3; i < n; ++i) {
      // A piece of the text at character boundaries, sometimes spoilt so that it only nearly
      // matches.
      size_t begin = random() % text.size();
      size_t end = std::min(text.size(), begin + 1 + random() % 12);
      auto inside = [&](size_t p) {
        return p < text.size() && (static_cast<unsigned char>(text[p]) & 0xc0) == 0x80;
      };
      while (inside(begin)) ++begin;
      while (inside(end)) ++end;
      if (begin >= end) continue;
      std::string stop = text.substr(begin, end - begin);
      if (random() % 3 == 0) stop += "#";
      stopping.stop_strings.push_back(stop);
    }
    const Outcome outcome = Feed(stopping, static_cast<int32_t>(ids.size()), ids);
    for (const std::string& stop : stopping.stop_strings) {
      ASSERT_EQ(outcome.text.find(stop), std::string::npos) << "leaked: " << stop;
    }
    ASSERT_EQ(text.compare(0, outcome.text.size(), outcome.text), 0);
    if (outcome.last.finished == FinishReason::kStopString) {
      ++stopped;
      ASSERT_EQ(text.compare(outcome.text.size(), outcome.last.stop_string.size(),
                             outcome.last.stop_string),
                0);
    } else {
      ASSERT_EQ(outcome.text, text);
    }
  }
  EXPECT_GT(stopped, 500);
}

TEST_F(OutputStreamTest, AStopStringOverSeveralTokensIsHeldBack) {
  StoppingParams stopping;
  stopping.stop_strings = {"lighthouse keeper slept"};
  const std::vector<int32_t> ids = Encode("The lighthouse keeper slept soundly");
  ASSERT_GT(ids.size(), 4u);
  const Outcome outcome = Feed(stopping, 100, ids);
  EXPECT_EQ(outcome.text, "The ");
  EXPECT_EQ(outcome.last.finished, FinishReason::kStopString);
  EXPECT_EQ(outcome.last.stop_string, "lighthouse keeper slept");
  EXPECT_LT(outcome.used, ids.size());
  // The same beginning without the end comes out whole.
  EXPECT_EQ(Feed(stopping, 3, Encode("The lighthouse keeper")).text, "The lighthouse keeper");
}

TEST_F(OutputStreamTest, EndOfTextAndStopIds) {
  std::vector<int32_t> ids = Encode("Hello there");
  const size_t words = ids.size();
  ids.push_back(end_of_text_[0]);
  ids.push_back(ids[0]);
  Outcome outcome = Feed({}, 100, ids);
  EXPECT_EQ(outcome.text, "Hello there");
  EXPECT_EQ(outcome.last.finished, FinishReason::kEndOfText);
  EXPECT_EQ(outcome.last.stop_token, end_of_text_[0]);
  EXPECT_EQ(outcome.used, words + 1);

  StoppingParams stopping;
  stopping.ignore_eos = true;
  outcome = Feed(stopping, 100, ids);
  EXPECT_EQ(outcome.used, ids.size());
  EXPECT_FALSE(outcome.last.finished.has_value());

  stopping.stop_token_ids = {ids[1]};
  outcome = Feed(stopping, 100, ids);
  EXPECT_EQ(outcome.last.finished, FinishReason::kStopTokenId);
  EXPECT_EQ(outcome.last.stop_token, ids[1]);
  EXPECT_EQ(outcome.text, "Hello");
}

TEST_F(OutputStreamTest, NothingEndsBeforeMinTokens) {
  StoppingParams stopping;
  stopping.min_tokens = 2;
  stopping.stop_token_ids = {7};
  stopping.stop_strings = {"Hello"};
  OutputStream stream(tokenizer_.get(), end_of_text_, stopping, 100);
  std::vector<int32_t> expected = {7};
  expected.insert(expected.end(), end_of_text_.begin(), end_of_text_.end());
  const std::vector<int32_t> hello = Encode("Hello Hello");
  ASSERT_EQ(hello.size(), 2u);
  EXPECT_TRUE(
      std::equal(stream.banned().begin(), stream.banned().end(), expected.begin(), expected.end()));
  const OutputStream::Piece first = stream.Push(hello[0]);
  EXPECT_EQ(first.text, "Hello");
  EXPECT_FALSE(first.finished.has_value());
  EXPECT_FALSE(stream.banned().empty());
  const OutputStream::Piece second = stream.Push(hello[1]);
  EXPECT_EQ(second.finished, FinishReason::kStopString);
  EXPECT_EQ(second.text, " ");
  EXPECT_TRUE(stream.banned().empty());
}

TEST_F(OutputStreamTest, AnUnfinishedCharacterAtTheEndIsReplaced) {
  std::vector<int32_t> ids = Encode("\xf0\x9f\xa6\x9c");
  ASSERT_GT(ids.size(), 1u) << "the test needs a character of several tokens";
  ids.pop_back();
  EXPECT_EQ(Feed({}, static_cast<int32_t>(ids.size()), ids).text, "\xef\xbf\xbd");
}

}  // namespace
}  // namespace ripplekv
