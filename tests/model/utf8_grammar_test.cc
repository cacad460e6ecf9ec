#include "model/unicode.h"

#include <cstdint>
#include <random>
#include <string>

#include "gtest/gtest.h"

namespace ripplekv {
namespace {

bool IsValidUtf8(const std::string& text) { return FindInvalidUtf8(text) == std::string::npos; }

std::string Bytes(std::initializer_list<int> bytes) {
  std::string text;
  for (int byte : bytes) text.push_back(static_cast<char>(byte));
  return text;
}

// One character by the grammar of RFC 3629, section 4; its length, or 0.
size_t GrammarLength(const std::string& text, size_t at) {
  const auto byte = [&](size_t i) {
    return at + i < text.size() ? static_cast<uint8_t>(text[at + i]) : 0x00;
  };
  const auto in = [&](size_t i, int low, int high) { return byte(i) >= low && byte(i) <= high; };
  const auto tail = [&](size_t i) { return in(i, 0x80, 0xbf); };
  if (in(0, 0x00, 0x7f)) return 1;
  if (in(0, 0xc2, 0xdf) && tail(1)) return 2;
  if (byte(0) == 0xe0 && in(1, 0xa0, 0xbf) && tail(2)) return 3;
  if (in(0, 0xe1, 0xec) && tail(1) && tail(2)) return 3;
  if (byte(0) == 0xed && in(1, 0x80, 0x9f) && tail(2)) return 3;
  if (in(0, 0xee, 0xef) && tail(1) && tail(2)) return 3;
  if (byte(0) == 0xf0 && in(1, 0x90, 0xbf) && tail(2) && tail(3)) return 4;
  if (in(0, 0xf1, 0xf3) && tail(1) && tail(2) && tail(3)) return 4;
  if (byte(0) == 0xf4 && in(1, 0x80, 0x8f) && tail(2) && tail(3)) return 4;
  return 0;
}

bool GrammarAccepts(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = GrammarLength(text, at);
    if (length == 0) return false;
    at += length;
  }
  return true;
}

TEST(Utf8Test, AgreesWithTheGrammarOnEveryLeadAndSecondByte) {
  EXPECT_TRUE(IsValidUtf8(""));
  for (int lead = 0; lead < 256; ++lead) {
    ASSERT_EQ(IsValidUtf8(Bytes({lead})), GrammarAccepts(Bytes({lead})));
    for (int second = 0; second < 256; ++second) {
      for (const std::string& text :
           {Bytes({lead, second}), Bytes({lead, second, 0x80}), Bytes({lead, second, 0xbf, 0x80}),
            Bytes({lead, second, 'a', 0x80}), Bytes({lead, second, 0x80, 0xc0})}) {
        ASSERT_EQ(IsValidUtf8(text), GrammarAccepts(text)) << lead << " " << second;
      }
    }
  }
}

TEST(Utf8Test, AgreesWithTheGrammarOnRandomText) {
  const std::string seeds =
      "a\x7f\xc2\xa0\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xef\xbf\xbf\xf0\x90\x80\x80";
  std::mt19937 random(4);
  int valid = 0;
  for (int i = 0; i < 200000; ++i) {
    std::string text;
    for (size_t n = random() % 6; n > 0; --n) text.push_back(seeds[random() % seeds.size()]);
    ASSERT_EQ(IsValidUtf8(text), GrammarAccepts(text));
    valid += IsValidUtf8(text);
  }
  EXPECT_GT(valid, 1000);
}

}  // namespace
}  // namespace ripplekv
