#include "client/json_line.h"

#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "ripplekv/v1/decode.pb.h"

namespace ripplekv {
namespace {

v1::GenerateResponse Response() {
  v1::GenerateResponse response;
  response.set_request_id("r1");
  auto& complete = *response.mutable_complete();
  complete.set_finish_reason(v1::FINISH_REASON_END_OF_TEXT);
  complete.mutable_usage()->set_prompt_tokens(5);
  complete.mutable_cache()->set_kv_bytes(int64_t{1} << 40);
  complete.set_stop_string("a\nb\"");
  return response;
}

TEST(JsonLineTest, OneLineThatProtobufReadsBack) {
  const std::string line = JsonLine(Response());
  EXPECT_FALSE(absl::StrContains(line, "\n"));
  v1::GenerateResponse parsed;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(line, &parsed).ok());
  EXPECT_EQ(parsed.SerializeAsString(), Response().SerializeAsString());
}

TEST(JsonLineTest, DefaultsAreWrittenAndAbsentOnesAreNot) {
  const auto json = nlohmann::json::parse(JsonLine(Response()));
  const auto& complete = json["complete"];
  EXPECT_EQ(complete["finish_reason"], "FINISH_REASON_END_OF_TEXT");
  EXPECT_EQ(complete["usage"]["output_tokens"], 0);
  EXPECT_EQ(complete["cache"]["kv_bytes"], "1099511627776");
  EXPECT_FALSE(complete.contains("next_token_kl"));
  EXPECT_FALSE(complete.contains("timings"));
  v1::GenerateResponse measured = Response();
  measured.mutable_complete()->set_next_token_kl(0);
  EXPECT_EQ(nlohmann::json::parse(JsonLine(measured))["complete"]["next_token_kl"], 0);
}

}  // namespace
}  // namespace ripplekv
