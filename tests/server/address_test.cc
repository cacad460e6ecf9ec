#include "server/address.h"

#include <gtest/gtest.h>

namespace ripplekv {
namespace {

TEST(ParseAddress, ReadsHostsAndPorts) {
  EXPECT_EQ(*ParseAddress("127.0.0.1:50051"), (Address{"127.0.0.1", 50051}));
  EXPECT_EQ(*ParseAddress("localhost:0"), (Address{"localhost", 0}));
  EXPECT_EQ(*ParseAddress("[::1]:65535"), (Address{"::1", 65535}));
}

TEST(ParseAddress, WritesWhatItReads) {
  for (const char* text : {"0.0.0.0:1", "[::]:50051", "host.example:9464"}) {
    EXPECT_EQ(ParseAddress(text)->ToString(), text);
  }
}

TEST(ParseAddress, RefusesTheRestAndQuotesIt) {
  for (const char* text : {"", "localhost", ":50051", "host:", "host:65536", "host:-1", "host:5a",
                           "::1:50051", "[]:1", "host:000001"}) {
    const auto address = ParseAddress(text);
    ASSERT_FALSE(address.ok()) << text;
    EXPECT_NE(address.status().message().find(text), std::string::npos) << address.status();
  }
}

}  // namespace
}  // namespace ripplekv
