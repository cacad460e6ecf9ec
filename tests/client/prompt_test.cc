#include "client/prompt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ripplekv {
namespace {

using testing::HasSubstr;

TEST(PromptTest, DocumentBlankLineQuestion) {
  EXPECT_EQ(DocumentQuestion("\nA tale.\nIts end.\n\n", " Who? "), "A tale.\nIts end.\n\nWho?");
}

TEST(PromptTest, MessagesHaveARoleAndTheirTextAsItIs) {
  const auto message = ParseMessage("user: a: b\n");
  ASSERT_TRUE(message.ok());
  EXPECT_EQ(message->role(), v1::ROLE_USER);
  EXPECT_EQ(message->content(), " a: b\n");
  EXPECT_EQ(ParseMessage("system:x")->role(), v1::ROLE_SYSTEM);
  EXPECT_EQ(ParseMessage("assistant:")->role(), v1::ROLE_ASSISTANT);
  EXPECT_EQ(ParseMessage("assistant:")->content(), "");
}

TEST(PromptTest, UnknownRolesAreNamed) {
  for (const char* text : {"tool:x", "user", "", ":x", "User:x"}) {
    const auto message = ParseMessage(text);
    ASSERT_FALSE(message.ok()) << text;
    EXPECT_THAT(message.status().message(), HasSubstr(std::string("'") + text + "'"));
  }
}

TEST(PromptTest, EachKindGoesToItsField) {
  v1::GenerateRequest request;
  SetPrompt(Prompt("raw"), request);
  EXPECT_EQ(request.text(), "raw");
  v1::ChatPrompt chat;
  chat.add_messages()->set_content("hi");
  SetPrompt(Prompt(chat), request);
  EXPECT_EQ(request.chat().messages(0).content(), "hi");
  v1::TokenIdsPrompt ids;
  ids.add_ids(7);
  SetPrompt(Prompt(ids), request);
  EXPECT_EQ(request.token_ids().ids(0), 7);

  v1::TokenizeRequest tokenize;
  EXPECT_TRUE(SetPrompt(Prompt("raw"), tokenize).ok());
  EXPECT_EQ(tokenize.text(), "raw");
  EXPECT_TRUE(SetPrompt(Prompt(chat), tokenize).ok());
  EXPECT_TRUE(tokenize.has_chat());
  EXPECT_FALSE(SetPrompt(Prompt(ids), tokenize).ok());
}

}  // namespace
}  // namespace ripplekv
