#include "server/rpc/tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace ripplekv {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::Pointee;
using testing::StartsWith;

constexpr char kAlice[] = "alices-token-0001";
constexpr char kBob[] = "bobs-token-000002";

TEST(Tokens, SaysWhoseATokenIs) {
  const auto tokens = Tokens::Parse(
      "# who may call\n\nalice alices-token-0001\r\n  bob\tbobs-token-000002  \n#carol x");
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(tokens->size(), 2u);
  EXPECT_THAT(tokens->NameOf(kAlice), Pointee(std::string("alice")));
  EXPECT_THAT(tokens->NameOf(kBob), Pointee(std::string("bob")));
  for (const char* none : {"", "alice", "alices-token-000", "alices-token-00011", "#carol"}) {
    EXPECT_EQ(tokens->NameOf(none), nullptr) << none;
  }
}

void ExpectRefused(const std::string& text, const std::string& line, const std::string& why) {
  const auto tokens = Tokens::Parse(text);
  ASSERT_FALSE(tokens.ok()) << text;
  EXPECT_EQ(tokens.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(tokens.status().message()),
              AllOf(StartsWith(line), HasSubstr(why), Not(HasSubstr("-token-"))));
}

TEST(Tokens, NamesTheLineThatIsWrong) {
  const std::string good = "alice alices-token-0001\n";
  ExpectRefused(good + "bob\n", "line 2: ", "has 1 words");
  ExpectRefused(good + "bob bobs-token-000002 x\n", "line 2: ", "has 3 words");
  ExpectRefused(good + "bob tokenof15bytes_\n", "line 2: ", "16 to 512");
  ExpectRefused(good + "bob " + std::string(513, 'x'), "line 2: ", "16 to 512");
  ExpectRefused(good + "bob bobs-t\xc3\xb6ken-000002\n", "line 2: ", "printable ASCII");
  ExpectRefused(std::string(65, 'n') + " alices-token-0001", "line 1: ", "name must be");
  ExpectRefused(good + "\n# more\nalice bobs-token-000002\n",
                "line 4: ", "'alice' is on line 1 already");
  ExpectRefused(good + "bob alices-token-0001\n", "line 2: ", "token is on line 1 already");
}

TEST(Tokens, NeedsOneAtLeast) {
  ExpectRefused("", "holds no token", "NAME TOKEN");
  ExpectRefused("# nobody\n\n", "holds no token", "NAME TOKEN");
}

}  // namespace
}  // namespace ripplekv
