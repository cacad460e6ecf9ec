#include "client/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace ripplekv {
namespace {

// RFC 3629 by another way: decodes the bits of each sequence and checks the number.
size_t FirstInvalidByDecoding(const std::string& text) {
  for (size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i]);
    const int length = first < 0x80         ? 1
                       : (first >> 5) == 6  ? 2
                       : (first >> 4) == 14 ? 3
                       : (first >> 3) == 30 ? 4
                                            : 0;
    if (length == 0 || i + length > text.size()) return i;
    uint32_t code = length == 1 ? first : first & (0xFF >> (length + 1));
    for (int k = 1; k < length; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      if ((next >> 6) != 2) return i;
      code = code << 6 | (next & 0x3F);
    }
    const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (code < least[length] || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return i;
    i += length;
  }
  return text.size();
}

TEST(Utf8Test, AgreesWithDecodingOnEveryTwoBytesAndSamplesOfFour) {
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) {
      const std::string two = {'x', static_cast<char>(a), static_cast<char>(b)};
      ASSERT_EQ(FirstInvalidUtf8(two), FirstInvalidByDecoding(two)) << a << " " << b;
      for (const int c : {0x00, 0x7F, 0x80, 0xBF, 0xC0}) {
        const std::string four = {static_cast<char>(a), static_cast<char>(b), static_cast<char>(c),
                                  static_cast<char>(0x80), 'y'};
        ASSERT_EQ(FirstInvalidUtf8(four), FirstInvalidByDecoding(four))
            << a << " " << b << " " << c;
      }
    }
  }
}

TEST(Utf8Test, ColumnsAreCodePoints) {
  EXPECT_EQ(Columns(""), 0);
  EXPECT_EQ(Columns("abc"), 3);
  EXPECT_EQ(Columns("±█ é"), 4);
  EXPECT_EQ(TakeColumns("±█ é", 2), "±█");
  EXPECT_EQ(TakeColumns("±█", 5), "±█");
  EXPECT_EQ(TakeColumns("±█", 0), "");
}

TEST(Utf8Test, ControlsCannotSteerATerminal) {
  EXPECT_EQ(WithoutControls("a\x1b[2Jb\n\tc\r\x07"), "a\uFFFD[2Jb\n\tc\uFFFD\uFFFD");
  EXPECT_EQ(WithoutControls("\xC2\x9B"
                            "31m"),
            "\uFFFD31m");  // CSI of the C1 controls
  EXPECT_EQ(WithoutControls("né → 🙂"), "né → 🙂");
  EXPECT_EQ(WithoutControls("\xFFz"), "\uFFFDz");
}

TEST(Utf8Test, EscapedIsOneReadableLine) {
  EXPECT_EQ(Escaped(" the\n"), " the\\n");
  EXPECT_EQ(Escaped("it's \\ \t\r"), "it\\'s \\\\ \\t\\r");
  EXPECT_EQ(Escaped("\xF0\x9F"), "\\xF0\\x9F");
  EXPECT_EQ(Escaped("\x1b[é"), "\\x1B[é");
}

}  // namespace
}  // namespace ripplekv
