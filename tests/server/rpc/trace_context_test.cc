#include "server/rpc/trace_context.h"

#include <gtest/gtest.h>

namespace ripplekv {
namespace {

constexpr char kTrace[] = "4bf92f3577b34da6a3ce929d0e0e4736";

TEST(ParseTraceparent, TakesTheTraceId) {
  for (const char* header : {
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-fe",
           "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
           "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-comes-next",
       }) {
    EXPECT_EQ(ParseTraceparent(header), kTrace) << header;
  }
}

TEST(ParseTraceparent, IgnoresWhatIsMalformed) {
  for (const char* header : {
           "",
           "4bf92f3577b34da6a3ce929d0e0e4736",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
           "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-001",
           "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
           "00-4bf92f3577b34da6a3ce929d0e0e473x-00f067aa0ba902b7-01",
           "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902bx-01",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0x",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
           "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01more",
           "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
           "0x-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
           "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
           "00-4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7-01",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7_01",
       }) {
    EXPECT_EQ(ParseTraceparent(header), std::nullopt) << header;
  }
}

}  // namespace
}  // namespace ripplekv
