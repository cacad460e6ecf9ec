#include "client/byte_size.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace ripplekv {
namespace {

TEST(ParseByteSize, ReadsEveryUnit) {
  EXPECT_EQ(*ParseByteSize("0"), 0);
  EXPECT_EQ(*ParseByteSize("1000"), 1000);
  EXPECT_EQ(*ParseByteSize("12B"), 12);
  EXPECT_EQ(*ParseByteSize("3KiB"), 3 * 1024);
  EXPECT_EQ(*ParseByteSize("256MiB"), 268435456);
  EXPECT_EQ(*ParseByteSize("8GiB"), int64_t{8589934592});
  EXPECT_EQ(*ParseByteSize("2TiB"), int64_t{2199023255552});
  EXPECT_EQ(*ParseByteSize(" 256 mib "), 268435456);
  EXPECT_EQ(*ParseByteSize("9223372036854775807"), std::numeric_limits<int64_t>::max());
}

TEST(ParseByteSize, RefusesTheRestAndQuotesIt) {
  for (const char* text : {"", " ", "MiB", "-1", "1.5GiB", "1e9", "256MB", "256M", "12 34", "0x10",
                           "9223372036854775808", "8388608TiB", "99999999999999999999KiB"}) {
    const auto size = ParseByteSize(text);
    ASSERT_FALSE(size.ok()) << text;
    EXPECT_EQ(size.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(size.status().message().find(text), std::string::npos) << size.status();
    EXPECT_NE(size.status().message().find("256MiB"), std::string::npos) << size.status();
  }
}

TEST(FormatByteSize, ChoosesTheLargestWholeUnitAndReadsBack) {
  EXPECT_EQ(FormatByteSize(0), "0B");
  EXPECT_EQ(FormatByteSize(1000), "1000B");
  EXPECT_EQ(FormatByteSize(1024), "1KiB");
  EXPECT_EQ(FormatByteSize(268435456), "256MiB");
  EXPECT_EQ(FormatByteSize(268435457), "268435457B");
  for (const int64_t bytes : {int64_t{0}, int64_t{7}, int64_t{1} << 20, (int64_t{1} << 40) * 3,
                              std::numeric_limits<int64_t>::max()}) {
    EXPECT_EQ(*ParseByteSize(FormatByteSize(bytes)), bytes);
  }
}

}  // namespace
}  // namespace ripplekv
