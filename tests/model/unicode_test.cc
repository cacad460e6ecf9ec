#include "model/unicode.h"

#include <gtest/gtest.h>

#include <random>

namespace ripplekv {
namespace {

const std::string kBad = "\xEF\xBF\xBD";

std::string Repair(std::string_view bytes) {
  Utf8Stream stream;
  std::string out = stream.Push(bytes);
  return out + stream.Flush();
}

// Examples of "U+FFFD substitution of maximal subparts", Unicode 15, tables 3-8 to 3-11.
TEST(Utf8Stream, ReplacesMaximalSubparts) {
  EXPECT_EQ(Repair("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            kBad + kBad + kBad + kBad + kBad + kBad + kBad + kBad + "A");
  EXPECT_EQ(Repair("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"),
            kBad + kBad + kBad + kBad + kBad + kBad + kBad + kBad + "A");
  EXPECT_EQ(Repair("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            kBad + kBad + kBad + kBad + kBad + "A" + kBad + kBad + "B");
  EXPECT_EQ(Repair("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), kBad + kBad + kBad + kBad + "A");
}

TEST(Utf8Stream, GivesWholeCharactersOnly) {
  Utf8Stream stream;
  EXPECT_EQ(stream.Push("a\xF0\x9F"), "a");
  EXPECT_EQ(stream.Push("\x98"), "");
  EXPECT_EQ(stream.Push("\x80z"), "\xF0\x9F\x98\x80z");
  EXPECT_EQ(stream.Push("\xE2\x82"), "");
  EXPECT_EQ(stream.Flush(), kBad);
  EXPECT_EQ(stream.Flush(), "");
}

TEST(Utf8Stream, DoesNotDependOnTheCuts) {
  std::mt19937 rng(1);
  const unsigned char kBytes[] = {'a',  0x80, 0xBF, 0x9F, 0xA0, 0x90, 0x8F, 0xC2,
                                  0xE0, 0xE2, 0xED, 0xF0, 0xF4, 0xF5, 0xFF};
  for (int round = 0; round < 3000; ++round) {
    std::string bytes(rng() % 12, 'a');
    for (char& c : bytes) c = static_cast<char>(kBytes[rng() % sizeof(kBytes)]);
    Utf8Stream stream;
    std::string out;
    for (size_t at = 0; at < bytes.size();) {
      const size_t size = 1 + rng() % 3;
      out += stream.Push(std::string_view(bytes).substr(at, size));
      at += size;
    }
    out += stream.Flush();
    ASSERT_EQ(out, Repair(bytes));
    ASSERT_EQ(FindInvalidUtf8(out), std::string_view::npos);
    ASSERT_EQ(out == bytes, FindInvalidUtf8(bytes) == std::string_view::npos);
  }
}

TEST(Utf8, EveryCodePointThereAndBack) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    std::string text;
    AppendUtf8(c, text);
    const Utf8Step step = NextUtf8(text);
    const bool surrogate = c >= 0xD800 && c < 0xE000;
    ASSERT_EQ(step.kind == Utf8Step::Kind::kCharacter, !surrogate)
        << std::hex << static_cast<uint32_t>(c);
    if (surrogate) continue;
    ASSERT_EQ(step.code_point, c);
    ASSERT_EQ(step.size, text.size());
  }
}

TEST(Excerpt, IsShortAndOfWholeCharacters) {
  EXPECT_EQ(Excerpt(""), "");
  EXPECT_EQ(Excerpt("h\xC3\xA9"), "h\xC3\xA9");
  EXPECT_EQ(Excerpt(std::string(80, 'x')), std::string(80, 'x'));
  EXPECT_EQ(Excerpt(std::string(81, 'x')), std::string(80, 'x') + "...");
  EXPECT_EQ(Excerpt(std::string(79, 'x') + "\xC3\xA9"), std::string(79, 'x') + "...");
  EXPECT_EQ(Excerpt("a\xFF"), "a\xEF\xBF\xBD");
  EXPECT_EQ(Excerpt("a\xC3"), "a\xEF\xBF\xBD");
}

TEST(Utf8, FindsTheFirstInvalidByte) {
  EXPECT_EQ(FindInvalidUtf8(""), std::string_view::npos);
  EXPECT_EQ(FindInvalidUtf8("h\xC3\xA9"), std::string_view::npos);
  EXPECT_EQ(FindInvalidUtf8("h\xC3\xA9\xFF"), 3u);
  EXPECT_EQ(FindInvalidUtf8("ab\xE2\x82"), 2u);
}

}  // namespace
}  // namespace ripplekv
