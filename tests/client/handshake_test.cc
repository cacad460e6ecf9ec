#include "client/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ripplekv {
namespace {

using testing::HasSubstr;

constexpr char kClosed[] =
    "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.1:1: Socket closed";
constexpr char kRefused[] =
    "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Failed to connect "
    "to remote host: Connection refused";

TEST(ExplainHandshake, TellsWhatTheOtherSideWants) {
  EXPECT_THAT(ExplainHandshake(false, kClosed), HasSubstr("call it by TLS"));
  EXPECT_THAT(ExplainHandshake(true, kClosed), HasSubstr("client's certificate"));
  EXPECT_THAT(ExplainHandshake(true,
                               "Ssl handshake failed: SSL_ERROR_SSL: error:0A00010B:SSL "
                               "routines::wrong version number"),
              HasSubstr("does not speak TLS"));
  for (const char* message :
       {"Ssl handshake failed: SSL_ERROR_SSL: error:0A000086:SSL routines::certificate verify "
        "failed",
        "SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED"}) {
    EXPECT_THAT(ExplainHandshake(true, message), HasSubstr("name the file of its CA")) << message;
  }
  EXPECT_THAT(ExplainHandshake(true, "Peer name example.com is not in peer certificate"),
              HasSubstr("for another name"));
}

TEST(ExplainHandshake, SaysNothingOfAServerThatIsNotThere) {
  EXPECT_EQ(ExplainHandshake(false, kRefused), "");
  EXPECT_EQ(ExplainHandshake(true, kRefused), "");
  EXPECT_EQ(ExplainHandshake(false, "DNS resolution failed"), "");
}

}  // namespace
}  // namespace ripplekv
