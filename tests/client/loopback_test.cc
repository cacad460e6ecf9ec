#include "client/loopback.h"

#include <gtest/gtest.h>

namespace ripplekv {
namespace {

TEST(IsLoopbackTarget, KnowsWhatStaysOnThisMachine) {
  for (const char* target : {"localhost:1", "127.0.0.1:50051", "127.1.2.3:1", "[::1]:50051",
                             "unix:/run/ripplekv.sock", "unix:///run/x", "dns:///localhost:1",
                             "dns:127.0.0.1:1", "ipv4:127.0.0.1:1,127.0.0.2:1", "ipv6:[::1]:1"}) {
    EXPECT_TRUE(IsLoopbackTarget(target)) << target;
  }
  for (const char* target :
       {"", "0.0.0.0:50051", "[::]:50051", "10.0.0.7:1", "example.com:1", "127.0.0.1.example.com:1",
        "127.example.com:1", "localhost.example.com:1", "dns:///ripplekv-headless:50051",
        "dns://127.0.0.1/example.com:1", "ipv4:127.0.0.1:1,10.0.0.7:1"}) {
    EXPECT_FALSE(IsLoopbackTarget(target)) << target;
  }
}

}  // namespace
}  // namespace ripplekv
