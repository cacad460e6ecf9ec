#include "server/rpc/generate_convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/rpc/prompt_convert.h"
#include "tests/server/rpc/test_model.h"

namespace ripplekv {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class RequestFromProtoTest : public testing::Test {
 protected:
  absl::StatusOr<GenerateRequest> Convert() {
    return RequestFromProto(proto_, model_, defaults_, context_.get(), 99);
  }

  void ExpectRefused(const std::string& part) {
    const auto request = Convert();
    ASSERT_FALSE(request.ok()) << part;
    EXPECT_EQ(request.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(request.status().message()), HasSubstr(part));
  }

  ModelInfo model_ = TinyModel();
  PlanDefaults defaults_;
  std::unique_ptr<ContextOrigin> context_;  // null: none
  v1::GenerateRequest proto_;
};

TEST_F(RequestFromProtoTest, LeavesTheEnginesDefaultsWhereNothingIsSaid) {
  proto_.set_text("ab");
  const auto request = Convert();
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(request->prompt, ElementsAre('a' - '!', 'b' - '!'));
  EXPECT_EQ(request->sampling.temperature, 0);
  EXPECT_EQ(request->sampling.top_p, 1);
  EXPECT_EQ(request->sampling.repetition_penalty, 1);
  EXPECT_FALSE(request->sampling.seed.has_value());
  EXPECT_FALSE(request->stopping.max_tokens.has_value());
  EXPECT_FALSE(request->kv.size.has_value());
  EXPECT_FALSE(request->kv.allocator.has_value());
  EXPECT_FALSE(request->kv.selector.has_value());
  EXPECT_FALSE(request->kv.key_type.has_value());
  EXPECT_FALSE(request->kv.value_type.has_value());
  EXPECT_FALSE(request->logprobs.has_value());
  EXPECT_FALSE(request->next_token_kl);
}

TEST_F(RequestFromProtoTest, CarriesEveryField) {
  proto_.mutable_token_ids()->add_ids(5);
  auto* sampling = proto_.mutable_sampling();
  sampling->set_temperature(0.5);
  sampling->set_top_p(0.75);
  sampling->set_top_k(3);
  sampling->set_min_p(0.25);
  sampling->set_repetition_penalty(2);
  sampling->set_presence_penalty(-1);
  sampling->set_frequency_penalty(1.5);
  sampling->set_seed(0);
  (*sampling->mutable_logit_bias())[7] = -2.5;
  auto* stopping = proto_.mutable_stopping();
  stopping->set_max_tokens(9);
  stopping->set_min_tokens(2);
  stopping->add_stop_strings("x");
  stopping->add_stop_token_ids(4);
  stopping->set_ignore_eos(true);
  proto_.mutable_kv()->mutable_size()->mutable_full();
  proto_.mutable_kv()->mutable_allocator()->mutable_uniform();
  proto_.mutable_kv()->mutable_selector()->mutable_snapkv()->set_window(8);
  proto_.mutable_kv()->set_growth_cap(16);
  proto_.mutable_kv()->set_key_type(v1::KV_TYPE_INT8);
  proto_.mutable_kv()->set_value_type(v1::KV_TYPE_FP32);
  proto_.mutable_output()->set_logprobs(0);
  proto_.mutable_output()->set_next_token_kl(true);
  const auto request = Convert();
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(request->prompt, ElementsAre(5));
  EXPECT_EQ(request->sampling.temperature, 0.5);
  EXPECT_EQ(request->sampling.top_p, 0.75);
  EXPECT_EQ(request->sampling.top_k, 3);
  EXPECT_EQ(request->sampling.min_p, 0.25);
  EXPECT_EQ(request->sampling.repetition_penalty, 2);
  EXPECT_EQ(request->sampling.presence_penalty, -1);
  EXPECT_EQ(request->sampling.frequency_penalty, 1.5);
  EXPECT_EQ(request->sampling.seed, 0u);
  EXPECT_THAT(request->sampling.logit_bias, ElementsAre(testing::Pair(7, -2.5f)));
  EXPECT_EQ(request->stopping.max_tokens, 9);
  EXPECT_EQ(request->stopping.min_tokens, 2);
  EXPECT_THAT(request->stopping.stop_strings, ElementsAre("x"));
  EXPECT_THAT(request->stopping.stop_token_ids, ElementsAre(4));
  EXPECT_TRUE(request->stopping.ignore_eos);
  EXPECT_EQ(request->kv.size, Size(Full{}));
  EXPECT_EQ(request->kv.allocator, Allocator(UniformAllocator{}));
  EXPECT_EQ(request->kv.selector, SelectorSpec(SnapKv{.window = 8}));
  EXPECT_EQ(request->kv.growth_cap, 16);
  EXPECT_EQ(request->kv.key_type, KvType::kInt8);
  EXPECT_EQ(request->kv.value_type, KvType::kF32);
  EXPECT_EQ(request->logprobs, 0);
  EXPECT_TRUE(request->next_token_kl);
}

TEST_F(RequestFromProtoTest, ListsHaveOneValueALayer) {
  proto_.set_text("ab");
  auto* multipliers = proto_.mutable_kv()->mutable_allocator()->mutable_multipliers();
  multipliers->add_multipliers(1);
  EXPECT_TRUE(Convert().ok());  // the number of layers is not known
  defaults_.layers = 2;
  ExpectRefused(
      "kv.allocator.multipliers.multipliers has 1 values: must have one for each of the 2");
  multipliers->add_multipliers(1);
  EXPECT_TRUE(Convert().ok());
  auto* positions = proto_.mutable_kv()->mutable_allocator()->mutable_positions();
  for (int i = 0; i < 3; ++i) positions->add_positions(50);
  ExpectRefused("kv.allocator.positions.positions has 3 values: must have one for each of the 2");
}

TEST_F(RequestFromProtoTest, ParsesSpecialTokensInTextButNotInContent) {
  proto_.set_text("<|end|>");
  EXPECT_THAT(Convert()->prompt, ElementsAre(96));
  auto* message = proto_.mutable_chat()->add_messages();
  message->set_role(v1::ROLE_USER);
  message->set_content("<|end|>");
  const auto request = Convert();
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->prompt.front(), 95);
  EXPECT_EQ(std::count(request->prompt.begin(), request->prompt.end(), 96), 1);
  // <|start|> "user" " " seven characters <|end|> and the opening <|start|>
  EXPECT_EQ(request->prompt.size(), 1u + 4 + 1 + 7 + 1 + 1);
  EXPECT_EQ(request->prompt.back(), 95);
}

TEST_F(RequestFromProtoTest, AddsBosToTextOnlyWhereTheModelWantsIt) {
  model_ = TinyModel(/*add_bos=*/true);
  proto_.set_text("a");
  EXPECT_THAT(Convert()->prompt, ElementsAre(97, 'a' - '!'));
  proto_.mutable_token_ids()->add_ids(1);
  EXPECT_THAT(Convert()->prompt, ElementsAre(1));
}

TEST_F(RequestFromProtoTest, NamesWhatIsWrong) {
  ExpectRefused("prompt is absent");
  proto_.set_text("");
  ExpectRefused("text is empty");
  proto_.set_text(std::string(99 * 9 + 1, 'a'));
  ExpectRefused("text is 892 bytes: must be 1 to 99 tokens");
  proto_.mutable_token_ids()->add_ids(3);
  proto_.mutable_token_ids()->add_ids(98);
  ExpectRefused("token_ids.ids[1] is 98: must be a token id in [0, 97]");
  proto_.mutable_chat();
  ExpectRefused("chat.messages has 0 messages: must be 1 to 1024");
  proto_.mutable_chat()->add_messages()->set_role(v1::ROLE_UNSPECIFIED);
  ExpectRefused("chat.messages[0].role is 0: must be ROLE_SYSTEM");
  proto_.mutable_chat()->mutable_messages(0)->set_role(static_cast<v1::Role>(42));
  ExpectRefused("chat.messages[0].role is 42");
  proto_.set_text("a");
  proto_.mutable_output()->set_logprobs(21);
  ExpectRefused("output.logprobs is 21: must be 0 to 20");
  proto_.mutable_output()->set_logprobs(-1);
  ExpectRefused("output.logprobs is -1");
  proto_.clear_output();
  proto_.mutable_kv()->mutable_size()->set_retention(0);
  ExpectRefused("kv.size.retention is 0");
  proto_.clear_kv();
  proto_.mutable_kv()->set_key_type(static_cast<v1::KvType>(9));
  ExpectRefused("kv.key_type is 9: must be KV_TYPE_FP32, KV_TYPE_BF16, KV_TYPE_INT8 or");
  proto_.clear_kv();
  proto_.mutable_kv()->set_value_type(static_cast<v1::KvType>(-1));
  ExpectRefused("kv.value_type is -1: must be");
  proto_.clear_kv();
  for (int i = 0; i < 17; ++i) proto_.mutable_stopping()->add_stop_strings("x");
  ExpectRefused("stopping.stop_strings has 17 entries: must be at most 16");
  proto_.clear_stopping();
  for (int i = 0; i < 257; ++i) proto_.mutable_stopping()->add_stop_token_ids(1);
  ExpectRefused("stopping.stop_token_ids has 257 entries: must be at most 256");
  proto_.clear_stopping();
  for (int i = 0; i < 1025; ++i) (*proto_.mutable_sampling()->mutable_logit_bias())[i] = 1;
  ExpectRefused("sampling.logit_bias has 1025 entries: must be at most 1024");
}

TEST_F(RequestFromProtoTest, OverAContextAppendsWithoutBos) {
  model_ = TinyModel(/*add_bos=*/true);
  context_ = std::make_unique<ContextOrigin>();
  context_->tokens = {97, 1, 2};
  proto_.set_text("a<|end|>");
  EXPECT_THAT(Convert()->prompt, ElementsAre('a' - '!', 96));
  proto_.mutable_token_ids()->add_ids(3);
  EXPECT_THAT(Convert()->prompt, ElementsAre(3));
  proto_.mutable_kv()->set_growth_cap(32);
  EXPECT_EQ(Convert()->kv.growth_cap, 32);
}

TEST_F(RequestFromProtoTest, OverAContextRefusesWhatWasFixedOrIsNotDefined) {
  context_ = std::make_unique<ContextOrigin>();
  context_->tokens = {1};
  proto_.set_text("a");
  proto_.mutable_kv()->mutable_size()->mutable_full();
  ExpectRefused("kv.size is given over a context");
  proto_.mutable_kv()->clear_size();
  proto_.mutable_kv()->mutable_allocator()->mutable_uniform();
  ExpectRefused("kv.allocator is given over a context");
  proto_.mutable_kv()->clear_allocator();
  proto_.mutable_kv()->mutable_selector()->mutable_snapkv();
  ExpectRefused("kv.selector is given over a context");
  proto_.clear_kv();
  proto_.mutable_kv()->set_key_type(v1::KV_TYPE_INT8);
  ExpectRefused("kv.key_type is given over a context");
  proto_.clear_kv();
  proto_.mutable_kv()->set_value_type(v1::KV_TYPE_INT8);
  ExpectRefused("kv.value_type is given over a context");
  proto_.clear_kv();
  proto_.mutable_output()->set_next_token_kl(true);
  ExpectRefused("output.next_token_kl is not defined over a context");
}

TEST_F(RequestFromProtoTest, AChatGoesOnFromAContextOfAChat) {
  auto* message = proto_.mutable_chat()->add_messages();
  message->set_role(v1::ROLE_USER);
  message->set_content("b");
  context_ = std::make_unique<ContextOrigin>();
  context_->tokens = {1, 2};
  EXPECT_EQ(Convert().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(Convert().status().message()), HasSubstr("not made from a chat"));
  EXPECT_THAT(std::string(Convert().status().message()), HasSubstr("text or token_ids"));

  context_->chat = {{"system", "a"}};
  context_->tokens = *MessagesToIds(model_, context_->chat, /*opens_answer=*/false);
  // What follows is what the new message alone would be, and the opening.
  const auto request = Convert();
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->prompt, *MessagesToIds(model_, {{"user", "b"}}, /*opens_answer=*/true));
  EXPECT_EQ(request->prompt.back(), 95);

  // The template writes the earlier messages another way once there are more.
  model_.chat_template = ChatTemplate::Parse(
      "{% for m in messages %}<|start|>{{ messages | length }}{{ m.content }}<|end|>{% endfor %}",
      {});
  ASSERT_TRUE(model_.chat_template.ok());
  context_->tokens = *MessagesToIds(model_, context_->chat, /*opens_answer=*/false);
  ExpectRefused("chat.messages does not go on from the context");
  ExpectRefused("from token 1 of 4");  // <|start|> is the same, then 1 became 2
}

TEST_F(RequestFromProtoTest, GrowthCapsAreZeroOrInRange) {
  proto_.set_text("a");
  for (const int cap : {0, 16, 1 << 20}) {
    proto_.mutable_kv()->set_growth_cap(cap);
    EXPECT_EQ(Convert()->kv.growth_cap, cap);
  }
  for (const int cap : {-1, 1, 15, (1 << 20) + 1}) {
    proto_.mutable_kv()->set_growth_cap(cap);
    ExpectRefused("kv.growth_cap is " + std::to_string(cap) +
                  ": must be 0 (no limit) or 16 to 1048576");
  }
}

TEST_F(RequestFromProtoTest, OffersTextWhereThereIsNoTemplate) {
  proto_.mutable_chat()->add_messages()->set_role(v1::ROLE_USER);
  model_.chat_template = absl::UnimplementedError("no macros");
  EXPECT_EQ(Convert().status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(Convert().status().message()),
              HasSubstr("send the prompt as text or token_ids"));
  model_.chat_template = absl::FailedPreconditionError("the file has none");
  EXPECT_EQ(Convert().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(ChunkToProto, GivesTokensTheirOwnBytes) {
  const ModelInfo model = TinyModel();
  TokenChunk chunk;
  chunk.text = "a ";
  chunk.token_ids = {64, 94};
  chunk.logprobs = {{.token = 64, .logprob = -0.5f, .top = {{94, -0.25f}, {64, -0.5f}}},
                    {.token = 94, .logprob = -1, .top = {}}};
  v1::GenerateChunk proto;
  ChunkToProto(chunk, *model.tokenizer, &proto);
  EXPECT_EQ(proto.text(), "a ");
  EXPECT_THAT(proto.token_ids(), ElementsAre(64, 94));
  ASSERT_EQ(proto.logprobs_size(), 2);
  EXPECT_EQ(proto.logprobs(0).token(), "a");
  EXPECT_EQ(proto.logprobs(0).logprob(), -0.5f);
  ASSERT_EQ(proto.logprobs(0).top_size(), 2);
  EXPECT_EQ(proto.logprobs(0).top(0).token(), " ");
  EXPECT_EQ(proto.logprobs(1).top_size(), 0);
}

TEST(CompletionToProto, CarriesEveryField) {
  Completion completion;
  completion.finish_reason = FinishReason::kStopString;
  completion.matched_stop_string = "END";
  completion.usage = {.context_tokens = 5, .prompt_tokens = 10, .completion_tokens = 4};
  completion.compactions = 3;
  completion.next_token_kl_floor = 0.5;
  completion.cache.layers = {
      {.positions = 7, .bytes = 100},
      {.positions = 8, .bytes = 200, .types = {KvType::kInt8, KvType::kInt4}}};
  completion.cache.kept_bytes = 11;
  completion.cache.full_bytes = 12;
  completion.cache.peak_prefill_bytes = 13;
  completion.timings = {
      .queue_seconds = 1, .prefill_seconds = 2, .decode_seconds = 3, .first_token_seconds = 4};
  completion.next_token_kl = 0;
  completion.seed = 18446744073709551615u;
  v1::GenerateComplete proto;
  CompletionToProto(completion, &proto);
  EXPECT_EQ(proto.finish_reason(), v1::FINISH_REASON_STOP_STRING);
  EXPECT_EQ(proto.stop_string(), "END");
  EXPECT_EQ(proto.usage().prompt_tokens(), 10);
  EXPECT_EQ(proto.usage().output_tokens(), 4);
  EXPECT_EQ(proto.usage().context_tokens(), 5);
  EXPECT_EQ(proto.compactions(), 3);
  EXPECT_EQ(proto.next_token_kl_floor(), 0.5);
  ASSERT_EQ(proto.cache().layers_size(), 2);
  EXPECT_EQ(proto.cache().layers(1).layer(), 1);
  EXPECT_EQ(proto.cache().layers(1).positions_kept(), 8);
  EXPECT_EQ(proto.cache().layers(1).kv_bytes(), 200);
  EXPECT_EQ(proto.cache().layers(1).key_type(), v1::KV_TYPE_INT8);
  EXPECT_EQ(proto.cache().layers(1).value_type(), v1::KV_TYPE_INT4);
  EXPECT_EQ(proto.cache().kv_bytes(), 11);
  EXPECT_EQ(proto.cache().full_kv_bytes(), 12);
  EXPECT_EQ(proto.cache().peak_prefill_bytes(), 13);
  EXPECT_EQ(proto.timings().first_token_seconds(), 4);
  EXPECT_TRUE(proto.has_next_token_kl());
  EXPECT_EQ(proto.seed(), 18446744073709551615u);

  completion.finish_reason = FinishReason::kEndOfText;
  completion.matched_stop_token = 96;
  completion.next_token_kl.reset();
  completion.next_token_kl_floor.reset();
  proto.Clear();
  CompletionToProto(completion, &proto);
  EXPECT_EQ(proto.finish_reason(), v1::FINISH_REASON_END_OF_TEXT);
  EXPECT_EQ(proto.stop_token_id(), 96);
  EXPECT_FALSE(proto.has_next_token_kl());
  EXPECT_FALSE(proto.has_next_token_kl_floor());

  completion.finish_reason = FinishReason::kMaxTokens;
  completion.matched_stop_token = -1;
  proto.Clear();
  CompletionToProto(completion, &proto);
  EXPECT_EQ(proto.finish_reason(), v1::FINISH_REASON_MAX_TOKENS);
  EXPECT_EQ(proto.matched_stop_case(), v1::GenerateComplete::MATCHED_STOP_NOT_SET);
}

}  // namespace
}  // namespace ripplekv
