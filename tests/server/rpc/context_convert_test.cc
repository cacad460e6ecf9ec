#include "server/rpc/context_convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/rpc/prompt_convert.h"
#include "tests/server/rpc/test_model.h"

namespace ripplekv {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(ContextRequestFromProto, TextIsTokenisedAsGenerateDoes) {
  const ModelInfo model = TinyModel(/*add_bos=*/true);
  v1::CreateContextRequest proto;
  proto.set_text("a<|end|>");
  proto.mutable_kv()->mutable_size()->set_retention(0.5);
  const auto request = ContextRequestFromProto(proto, model, {}, 99);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(request->prompt, ElementsAre(97, 'a' - '!', 96));
  EXPECT_TRUE(request->chat.empty());
  EXPECT_EQ(request->kv.size, Size(Retention{0.5}));
}

TEST(ContextRequestFromProto, AChatIsKeptWithoutTheOpeningOfAnAnswer) {
  const ModelInfo model = TinyModel();
  v1::CreateContextRequest proto;
  auto* message = proto.mutable_chat()->add_messages();
  message->set_role(v1::ROLE_SYSTEM);
  message->set_content("a");
  const auto request = ContextRequestFromProto(proto, model, {}, 99);
  ASSERT_TRUE(request.ok()) << request.status();
  ASSERT_EQ(request->chat.size(), 1u);
  EXPECT_EQ(request->chat[0].role, "system");
  EXPECT_EQ(request->chat[0].content, "a");
  // <|start|> "system" " " "a" <|end|>, and no <|start|> after it.
  EXPECT_EQ(request->prompt.size(), 1u + 6 + 1 + 1 + 1);
  EXPECT_EQ(request->prompt.back(), 96);
}

TEST(ContextRequestFromProto, NamesWhatIsWrong) {
  const ModelInfo model = TinyModel();
  v1::CreateContextRequest proto;
  const auto refused = [&] {
    const auto request = ContextRequestFromProto(proto, model, {}, 99);
    EXPECT_EQ(request.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(request.status().message());
  };
  EXPECT_THAT(refused(), HasSubstr("prompt is absent"));
  proto.set_text("");
  EXPECT_THAT(refused(), HasSubstr("text is empty"));
  proto.set_text("a");
  proto.mutable_kv()->set_growth_cap(0);
  EXPECT_THAT(refused(), HasSubstr("kv.growth_cap is 0: must be absent"));
}

TEST(ContextToProto, CarriesEveryField) {
  ContextInfo context;
  context.id = "abc";
  context.tokens = 10;
  context.layers = {{.positions = 7, .bytes = 100}, {.positions = 8, .bytes = 200}};
  context.kv_bytes = 11;
  context.full_kv_bytes = 12;
  context.page_bytes = 13;
  context.created = std::chrono::system_clock::time_point(seconds(1000));
  context.plan_profile_id = "p";
  auto origin = std::make_shared<ContextOrigin>();
  origin->chat = {{"user", "x"}};
  context.origin = origin;
  const Clock::time_point now = Clock::now();
  const std::chrono::system_clock::time_point wall_now(seconds(2000));
  context.last_used = now - seconds(100);
  v1::Context proto;
  ContextToProto(context, seconds(3600), now, wall_now, &proto);
  EXPECT_EQ(proto.context_id(), "abc");
  EXPECT_EQ(proto.tokens(), 10);
  ASSERT_EQ(proto.layers_size(), 2);
  EXPECT_EQ(proto.layers(1).layer(), 1);
  EXPECT_EQ(proto.layers(1).positions_kept(), 8);
  EXPECT_EQ(proto.layers(1).kv_bytes(), 200);
  EXPECT_EQ(proto.kv_bytes(), 11);
  EXPECT_EQ(proto.full_kv_bytes(), 12);
  EXPECT_EQ(proto.page_bytes(), 13);
  EXPECT_EQ(proto.users(), 0);
  EXPECT_EQ(proto.created_at().seconds(), 1000);
  EXPECT_EQ(proto.idle_seconds(), 100);
  EXPECT_EQ(proto.expires_at().seconds(), 2000 + 3500);
  EXPECT_TRUE(proto.chat());
  EXPECT_EQ(proto.profile_id(), "p");

  context.users = 2;
  context.origin = std::make_shared<ContextOrigin>();
  proto.Clear();
  ContextToProto(context, seconds(3600), now, wall_now, &proto);
  EXPECT_EQ(proto.users(), 2);
  EXPECT_EQ(proto.idle_seconds(), 0);
  EXPECT_FALSE(proto.has_expires_at());
  EXPECT_FALSE(proto.chat());

  context.users = 0;
  proto.Clear();
  ContextToProto(context, seconds(0), now, wall_now, &proto);
  EXPECT_FALSE(proto.has_expires_at());
}

}  // namespace
}  // namespace ripplekv
