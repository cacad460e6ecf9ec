#include "model/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

namespace ripplekv {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

constexpr std::string_view kEnd = "<|im_end|>";
constexpr int32_t kEndId = 2;

const Tokenizer& Model() {
  static const auto* tokenizer = [] {
    const char* path = std::getenv("RIPPLEKV_MODEL");
    const auto file = GgufFile::Open(path ? path : RIPPLEKV_DEFAULT_MODEL);
    if (!file.ok()) {
      ADD_FAILURE() << file.status() << "; run scripts/get_model.sh";
      std::abort();
    }
    auto made = Tokenizer::FromGguf(*file);
    if (!made.ok()) {
      ADD_FAILURE() << made.status();
      std::abort();
    }
    return made->release();
  }();
  return *tokenizer;
}

nlohmann::json Golden() {
  std::ifstream in(RIPPLEKV_SOURCE_DIR "/tests/model/tokenizer_golden.json");
  return nlohmann::json::parse(in);
}

// Made by tests/model/tokenizer_oracle.py with the `tokenizers` library.
TEST(Tokenizer, EqualsTheTokenizersLibrary) {
  const nlohmann::json golden = Golden();
  ASSERT_GE(golden.size(), 60u);
  for (const auto& one : golden) {
    const std::string text = one["text"];
    EXPECT_EQ(*Model().Encode(text, SpecialTokens::kParse), one["ids"].get<Ids>()) << text;
    EXPECT_EQ(*Model().Encode(text, SpecialTokens::kAsText), one["ids_as_text"].get<Ids>()) << text;
    EXPECT_EQ(*Model().EncodeSegments({{text, false}}), one["ids"].get<Ids>()) << text;
    EXPECT_EQ(*Model().EncodeSegments({{text, true}}), one["ids_as_text"].get<Ids>()) << text;
    if (!Model().FirstMissingByte(text)) {
      EXPECT_EQ(*Model().Decode(one["ids"].get<Ids>(), false), text);
      EXPECT_EQ(*Model().Decode(one["ids_as_text"].get<Ids>(), true), text);
    }
  }
}

TEST(Tokenizer, KnowsTheModelsFields) {
  EXPECT_EQ(Model().vocab_size(), 49152);
  EXPECT_EQ(Model().bos(), 1);
  EXPECT_EQ(Model().eos(), kEndId);
  EXPECT_EQ(Model().unknown(), 0);
  EXPECT_EQ(Model().padding(), 2);
  EXPECT_FALSE(Model().add_bos());
  EXPECT_FALSE(Model().add_eos());
  EXPECT_TRUE(Model().IsEndOfGeneration(kEndId));
  EXPECT_FALSE(Model().IsEndOfGeneration(1));
  EXPECT_FALSE(Model().IsEndOfGeneration(-1));
  EXPECT_TRUE(Model().IsSpecial(16));
  EXPECT_FALSE(Model().IsSpecial(17));
  EXPECT_FALSE(Model().IsSpecial(49152));
  EXPECT_EQ(Model().TokenBytes(kEndId), kEnd);
  EXPECT_EQ(Model().TokenBytes(49152), "");
}

TEST(Tokenizer, ControlTokensAreRecognisedOnlyOutsideOfUsersText) {
  const auto count = [](const std::vector<TextSegment>& segments) {
    const Ids ids = *Model().EncodeSegments(segments);
    std::string all;
    for (const TextSegment& segment : segments) all += segment.text;
    EXPECT_EQ(*Model().Decode(ids, false), all);
    return std::count(ids.begin(), ids.end(), kEndId);
  };
  const std::string end(kEnd);
  EXPECT_EQ(count({{end, false}}), 1);
  EXPECT_EQ(count({{end, true}}), 0);
  EXPECT_EQ(count({{"<|im_", false}, {"end|>", false}}), 1);
  EXPECT_EQ(count({{"<|im_", false}, {"end|>", true}}), 0);
  EXPECT_EQ(count({{"<|im_", true}, {"end|>", false}}), 0);
  EXPECT_EQ(count({{"<|im_", false}, {"", true}, {"end|>", false}}), 1);
  EXPECT_EQ(count({{"<|im_e", false}, {"n", true}, {"d|>", false}}), 0);
  EXPECT_EQ(count({{end, true}, {end, false}, {end + end, true}, {end + end, false}, {end, true}}),
            3);
}

TEST(Tokenizer, PlainTextIsOneRunWhoeverWroteIt) {
  const Ids whole = *Model().Encode("Hello world, 12 apples", SpecialTokens::kParse);
  EXPECT_EQ(*Model().EncodeSegments(
                {{"Hel", false}, {"lo wor", true}, {"ld, 1", false}, {"2 apples", true}}),
            whole);
  EXPECT_EQ(*Model().EncodeSegments({}), Ids{});
}

TEST(Tokenizer, LeavesOutBytesWithoutAToken) {
  EXPECT_EQ(Model().FirstMissingByte("ab\x04z"), 2u);
  EXPECT_EQ(Model().FirstMissingByte("ab\x05z"), std::nullopt);
  EXPECT_EQ(*Model().Encode("\x04", SpecialTokens::kParse), Ids{});
}

TEST(Tokenizer, RefusesWhatIsNotUtf8) {
  const auto ids = Model().Encode("abc\xFFx", SpecialTokens::kParse);
  EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(ids.status().message()), HasSubstr("byte 3"));
}

TEST(Tokenizer, RefusesIdsOutOfRange) {
  const auto text = Model().Decode({5, 49152}, false);
  EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(text.status().message()),
              HasSubstr("token_ids[1] is 49152; allowed: 0 to 49151"));
  EXPECT_FALSE(Model().Decode({-1}, false).ok());
}

// A quadratic merge would take hours here.
TEST(Tokenizer, EncodesAMegabyteOfOneCharacter) {
  for (const std::string character : {"a", " ", "0", "<"}) {
    std::string text;
    while (text.size() < (1 << 20)) text += character;
    const Ids ids = *Model().Encode(text, SpecialTokens::kParse);
    ASSERT_EQ(*Model().Decode(ids, false), text) << character;
    if (character == "0") {
      EXPECT_EQ(ids.size(), text.size());  // each digit alone
    } else {
      EXPECT_LE(ids.size(), text.size() / 2) << character;
    }
  }
}

TEST(Tokenizer, ServesManyThreads) {
  const nlohmann::json golden = Golden();
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (const auto& one : golden) {
        const std::string text = one["text"];
        const auto ids = Model().Encode(text, SpecialTokens::kParse);
        wrong += !ids.ok() || *ids != one["ids"].get<Ids>();
        wrong += !Model().Decode(*ids, false).ok();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(StreamDecoder, EqualsWholeDecodingForRandomIds) {
  std::mt19937 rng(1);
  std::vector<int32_t> byte_like;
  for (int32_t id = 0; id < Model().vocab_size(); ++id) {
    if (Model().TokenBytes(id).size() == 1) byte_like.push_back(id);
  }
  ASSERT_GT(byte_like.size(), 200u);
  size_t repaired = 0;
  for (int round = 0; round < 2000; ++round) {
    Ids ids(rng() % 30);
    for (int32_t& id : ids) {
      id = rng() % 2 ? byte_like[rng() % byte_like.size()]
                     : static_cast<int32_t>(rng() % Model().vocab_size());
    }
    const bool skip = rng() % 2;
    StreamDecoder decoder(&Model(), skip);
    std::string streamed, bytes;
    for (int32_t id : ids) {
      const std::string part = decoder.Push(id);
      ASSERT_EQ(FindInvalidUtf8(part), std::string_view::npos);
      streamed += part;
      if (!skip || !Model().IsSpecial(id)) bytes += Model().TokenBytes(id);
    }
    streamed += decoder.Flush();
    ASSERT_EQ(streamed, *Model().Decode(ids, skip));
    if (FindInvalidUtf8(bytes) == std::string_view::npos) {
      ASSERT_EQ(streamed, bytes);
    } else {
      ++repaired;
    }
  }
  EXPECT_GT(repaired, 500u);
}

// A vocabulary of its own: 0 <s>, 1 </s>, 2 <tool>, 3 a, 4 b, 5 ab, 6 space, 7 "é" as two bytes'
// first, 8 its second.
TokenizerData Small() {
  TokenizerData data;
  data.tokens = {"<s>", "</s>", "<tool>", "a", "b", "ab", "Ġ", "Ã", "©"};
  data.types.assign(data.tokens.size(), TokenType::kNormal);
  data.types[0] = data.types[1] = TokenType::kControl;
  data.types[2] = TokenType::kUserDefined;
  data.merges = {"a b"};
  data.pre = "gpt-2";
  data.bos = 0;
  data.eos = 1;
  return data;
}

TEST(Tokenizer, UserDefinedTokensAreRecognisedInAnyText) {
  const auto tokenizer = Tokenizer::Create(Small());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(*(*tokenizer)->EncodeSegments({{"a<tool>b", true}}), ElementsAre(3, 2, 4));
  EXPECT_THAT(*(*tokenizer)->EncodeSegments({{"ab<s>", false}, {" \xC3\xA9", true}}),
              ElementsAre(5, 0, 6, 7, 8));
  EXPECT_FALSE((*tokenizer)->IsSpecial(2));
}

TEST(Tokenizer, TakesTheLongestOfSeveralTokens) {
  TokenizerData data = Small();
  data.tokens.push_back("<s><s>");
  data.types.push_back(TokenType::kControl);
  const auto tokenizer = Tokenizer::Create(data);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(*(*tokenizer)->Encode("<s><s><s>", SpecialTokens::kParse), ElementsAre(9, 0));
}

TEST(Tokenizer, EveryEndTokenEnds) {
  TokenizerData data = Small();
  data.eot = 2;
  data.eom = 4;
  const auto tokenizer = Tokenizer::Create(data);
  ASSERT_TRUE(tokenizer.ok());
  for (int32_t id = 0; id < 9; ++id) {
    EXPECT_EQ((*tokenizer)->IsEndOfGeneration(id), id == 1 || id == 2 || id == 4) << id;
  }
}

TEST(Tokenizer, NamesWhatIsInconsistent) {
  const auto refusal = [](absl::StatusCode code, auto change) {
    TokenizerData data = Small();
    change(data);
    const auto made = Tokenizer::Create(data);
    EXPECT_EQ(made.status().code(), code) << made.status();
    return std::string(made.status().message());
  };
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(refusal(kInvalid, [](auto& d) { d.tokens.clear(); }), HasSubstr("0 tokens"));
  EXPECT_THAT(refusal(kInvalid, [](auto& d) { d.types.pop_back(); }), HasSubstr("8 token types"));
  EXPECT_THAT(refusal(kInvalid, [](auto& d) { d.tokens[4] = "a"; }),
              HasSubstr("tokens 3 and 4 are both 'a'"));
  EXPECT_THAT(refusal(kInvalid, [](auto& d) { d.tokens[4] = ""; }), HasSubstr("token 4 is empty"));
  EXPECT_THAT(refusal(kInvalid, [](auto& d) { d.tokens[4] = "\xFF"; }), HasSubstr("token 4"));
  EXPECT_THAT(refusal(kInvalid, [](auto& d) { d.bos = 9; }),
              HasSubstr("bos token id 9 is outside of 0 to 8"));
  EXPECT_THAT(refusal(kInvalid, [](auto& d) { d.eot = -2; }), HasSubstr("eot token id -2"));
  EXPECT_THAT(refusal(kInvalid, [](auto& d) { d.add_bos = true, d.bos.reset(); }),
              HasSubstr("has no id"));
  EXPECT_THAT(refusal(kInvalid, [](auto& d) { d.merges = {"a c"}; }), HasSubstr("merge 0 'a c'"));
  EXPECT_THAT(refusal(kInvalid, [](auto& d) { d.types[5] = TokenType::kControl; }),
              HasSubstr("control token 5 'ab' can be made from plain text"));
  EXPECT_THAT(refusal(absl::StatusCode::kUnimplemented, [](auto& d) { d.pre = "tekken"; }),
              HasSubstr("'tekken' is not supported; supported: gpt-2, smollm"));
  EXPECT_THAT(
      refusal(absl::StatusCode::kUnimplemented, [](auto& d) { d.types[3] = TokenType::kByte; }),
      HasSubstr("token 3 'a' has type 6"));
}

}  // namespace
}  // namespace ripplekv
