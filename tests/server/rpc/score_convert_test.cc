#include "server/rpc/score_convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/rpc/prompt_convert.h"
#include "tests/server/rpc/test_model.h"

namespace ripplekv {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int32_t kBos = 97;

class ScoreRequestFromProtoTest : public testing::Test {
 protected:
  absl::StatusOr<ScoreRequest> Convert() {
    return ScoreRequestFromProto(proto_, model_, {}, context_.get(), 99);
  }

  void ExpectRefused(const std::string& part) {
    const auto request = Convert();
    ASSERT_FALSE(request.ok()) << part;
    EXPECT_EQ(request.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(request.status().message()), HasSubstr(part));
  }

  ModelInfo model_ = TinyModel(/*add_bos=*/true);
  std::unique_ptr<ContextOrigin> context_;  // null: none
  v1::ScoreRequest proto_;
};

TEST_F(ScoreRequestFromProtoTest, ContinuationsAreTokenisedOnTheirOwn) {
  proto_.set_text("a");
  proto_.add_continuations()->set_text("b<|end|>");
  proto_.add_continuations()->mutable_token_ids()->add_ids(7);
  proto_.mutable_kv()->mutable_size()->mutable_full();
  EXPECT_FALSE(Convert()->reference);
  proto_.set_reference(true);
  const auto request = Convert();
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(request->prompt, ElementsAre(kBos, 'a' - '!'));
  EXPECT_THAT(request->continuations, ElementsAre(ElementsAre('b' - '!', 96), ElementsAre(7)));
  EXPECT_EQ(request->kv.size, Size(Full{}));
  EXPECT_TRUE(request->reference);
}

TEST_F(ScoreRequestFromProtoTest, AnEmptyPromptIsBosOrWhatTheContextHolds) {
  proto_.add_continuations()->set_text("b");
  EXPECT_THAT(Convert()->prompt, ElementsAre(kBos));
  proto_.set_text("");
  EXPECT_THAT(Convert()->prompt, ElementsAre(kBos));
  proto_.mutable_token_ids();
  EXPECT_THAT(Convert()->prompt, ElementsAre(kBos));
  context_ = std::make_unique<ContextOrigin>();
  context_->tokens = {1, 2};
  EXPECT_THAT(Convert()->prompt, IsEmpty());
  proto_.set_text("a");
  EXPECT_THAT(Convert()->prompt, ElementsAre('a' - '!'));
}

TEST_F(ScoreRequestFromProtoTest, WithoutBosAPromptIsNeeded) {
  TokenizerData data;
  data.tokens = {"a", "b"};
  data.types.assign(2, TokenType::kNormal);
  data.pre = "gpt-2";
  auto tokenizer = Tokenizer::Create(std::move(data));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  model_.tokenizer = *std::move(tokenizer);
  proto_.add_continuations()->set_text("b");
  EXPECT_EQ(Convert().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(Convert().status().message()), HasSubstr("no BOS token"));
}

TEST_F(ScoreRequestFromProtoTest, AChatEndsWithTheOpeningOfTheAnswer) {
  auto* message = proto_.mutable_chat()->add_messages();
  message->set_role(v1::ROLE_USER);
  message->set_content("q");
  proto_.add_continuations()->set_text("b");
  EXPECT_EQ(Convert()->prompt, *MessagesToIds(model_, {{"user", "q"}}, /*opens_answer=*/true));
}

TEST_F(ScoreRequestFromProtoTest, NamesWhatIsWrong) {
  proto_.set_text("a");
  ExpectRefused("continuations has 0 entries: must have 1 to 256");
  for (int i = 0; i < 257; ++i) proto_.add_continuations()->set_text("b");
  ExpectRefused("continuations has 257 entries");
  proto_.clear_continuations();
  proto_.add_continuations()->set_text("b");
  proto_.add_continuations();
  ExpectRefused("continuations[1] is empty: must be text or token_ids");
  proto_.mutable_continuations(1)->set_text("");
  ExpectRefused("continuations[1].text is empty");
  proto_.mutable_continuations(1)->mutable_token_ids();
  ExpectRefused("continuations[1] has no token");
  proto_.mutable_continuations(1)->mutable_token_ids()->add_ids(98);
  ExpectRefused("continuations[1].token_ids.ids[0] is 98");
  proto_.mutable_continuations(1)->set_text(std::string(101, 'a'));
  ExpectRefused("continuations[1] has 101 tokens: must be 1 to 100");
  proto_.mutable_continuations(1)->set_text("b");
  proto_.mutable_kv()->set_growth_cap(16);
  ExpectRefused("kv.growth_cap is 16: must be absent");
  proto_.clear_kv();
  context_ = std::make_unique<ContextOrigin>();
  proto_.mutable_kv()->mutable_size()->set_retention(0.5);
  ExpectRefused("kv.size is given over a context");
  proto_.clear_kv();
  proto_.set_reference(true);
  ExpectRefused("reference is true over a context: must be false");
}

TEST(ScoreToProto, CarriesEveryField) {
  const ModelInfo model = TinyModel();
  ScoreResult result;
  result.continuations = {
      {.tokens = {{.token = 64, .logprob = -0.5f, .greedy = true},
                  {.token = 94, .logprob = -1, .greedy = false}},
       .logprob = -1.5,
       .greedy = false},
      {.tokens = {{.token = 65,
                   .logprob = -0.25f,
                   .greedy = true,
                   .reference =
                       ReferenceScore{.kl = 0.75, .top1_agrees = false, .logprob = -0.125f}}},
       .logprob = -0.25,
       .greedy = true,
       .mean_kl = 0.625}};
  result.usage = {.context_tokens = 1, .prompt_tokens = 2, .completion_tokens = 3};
  result.cache.layers = {{.positions = 7, .bytes = 100}};
  result.cache.kept_bytes = 11;
  result.timings.decode_seconds = 3;
  v1::ScoreResponse proto;
  ScoreToProto(result, *model.tokenizer, &proto);
  ASSERT_EQ(proto.continuations_size(), 2);
  EXPECT_EQ(proto.continuations(0).logprob(), -1.5);
  EXPECT_FALSE(proto.continuations(0).greedy());
  ASSERT_EQ(proto.continuations(0).tokens_size(), 2);
  EXPECT_EQ(proto.continuations(0).tokens(0).token_id(), 64);
  EXPECT_EQ(proto.continuations(0).tokens(0).token(), "a");
  EXPECT_EQ(proto.continuations(0).tokens(0).logprob(), -0.5f);
  EXPECT_TRUE(proto.continuations(0).tokens(0).greedy());
  EXPECT_FALSE(proto.continuations(0).tokens(1).greedy());
  EXPECT_TRUE(proto.continuations(1).greedy());
  EXPECT_FALSE(proto.continuations(0).has_mean_kl());
  EXPECT_FALSE(proto.continuations(0).tokens(0).has_kl());
  EXPECT_FALSE(proto.continuations(0).tokens(0).has_top1_agrees());
  EXPECT_FALSE(proto.continuations(0).tokens(0).has_reference_logprob());
  EXPECT_EQ(proto.continuations(1).mean_kl(), 0.625);
  EXPECT_EQ(proto.continuations(1).tokens(0).kl(), 0.75);
  EXPECT_TRUE(proto.continuations(1).tokens(0).has_top1_agrees());
  EXPECT_FALSE(proto.continuations(1).tokens(0).top1_agrees());
  EXPECT_EQ(proto.continuations(1).tokens(0).reference_logprob(), -0.125f);
  EXPECT_EQ(proto.usage().context_tokens(), 1);
  EXPECT_EQ(proto.usage().prompt_tokens(), 2);
  EXPECT_EQ(proto.usage().output_tokens(), 3);
  EXPECT_EQ(proto.cache().layers(0).positions_kept(), 7);
  EXPECT_EQ(proto.cache().kv_bytes(), 11);
  EXPECT_EQ(proto.timings().decode_seconds(), 3);
}

}  // namespace
}  // namespace ripplekv
