#include "calibration/canonical_digest.h"

#include <string>

#include "gtest/gtest.h"

namespace ripplekv {
namespace {

// Expected digests: hashlib.sha256 over the encoding that the header describes.
TEST(CanonicalDigestTest, HashesTheDocumentedEncoding) {
  EXPECT_EQ(CanonicalDigest("x").Hex(),
            "2353353271f2141485e50a2e151256501ffae7f90c26bd7e5889068eaea3751c");
  CanonicalDigest digest("test");
  digest.AddText("text", "caf\xc3\xa9");
  digest.AddInt("int", -2);
  digest.AddUint("uint", UINT64_MAX);
  digest.AddDouble("double", 0.1);
  digest.AddDouble("zero", -0.0);
  digest.AddDoubles("list", {1.5, -2.25});
  EXPECT_EQ(digest.Hex(), "6bb3b820e96e32df914305c3c7ab170ff4730889ad3fc2956485db7568be4648");
}

TEST(CanonicalDigestTest, FieldBoundariesCount) {
  const auto digest = [](std::string_view name_a, std::string_view a, std::string_view name_b,
                         std::string_view b) {
    CanonicalDigest digest("test");
    digest.AddText(name_a, a);
    digest.AddText(name_b, b);
    return digest.Hex();
  };
  const std::string base = digest("a", "xy", "b", "z");
  EXPECT_NE(digest("a", "x", "b", "yz"), base);
  EXPECT_NE(digest("ax", "y", "b", "z"), base);
  EXPECT_NE(digest("b", "z", "a", "xy"), base);
}

TEST(CanonicalDigestTest, RecognisesDigests) {
  EXPECT_TRUE(IsSha256Hex(std::string(60, '0') + "9afe"));
  EXPECT_FALSE(IsSha256Hex(""));
  EXPECT_FALSE(IsSha256Hex(std::string(63, 'a')));
  EXPECT_FALSE(IsSha256Hex(std::string(65, 'a')));
  EXPECT_FALSE(IsSha256Hex(std::string(63, 'a') + "A"));
  EXPECT_FALSE(IsSha256Hex(std::string(63, 'a') + "g"));
  EXPECT_FALSE(IsSha256Hex("../" + std::string(61, 'a')));
}

}  // namespace
}  // namespace ripplekv
