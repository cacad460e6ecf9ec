#include "server/engine/request_validation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace ripplekv {
namespace {

using ::testing::HasSubstr;

constexpr RequestLimits kLimits = {
    .vocab_size = 1000, .context_length = 100, .max_prompt_tokens = 90};

GenerateRequest Valid() {
  GenerateRequest r;
  r.prompt = {0, 5, 999};
  return r;
}

struct Case {
  const char* name;
  std::function<void(GenerateRequest&)> change;
  std::vector<std::string> message;  // empty: valid
};

class RequestValidationTest : public ::testing::TestWithParam<Case> {};

TEST_P(RequestValidationTest, NamesFieldValueAndRange) {
  GenerateRequest request = Valid();
  GetParam().change(request);
  const absl::Status status = ValidateRequest(request, kLimits);
  if (GetParam().message.empty()) {
    EXPECT_TRUE(status.ok()) << status;
    return;
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  for (const std::string& part : GetParam().message)
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
}

const double kNan = std::numeric_limits<double>::quiet_NaN();

INSTANTIATE_TEST_SUITE_P(
    All, RequestValidationTest,
    ::testing::Values(
        Case{"valid", [](auto&) {}, {}},
        Case{"empty_prompt", [](auto& r) { r.prompt.clear(); }, {"prompt is empty", "1 to 90"}},
        Case{"longest_prompt", [](auto& r) { r.prompt.assign(90, 1); }, {}},
        Case{"long_prompt", [](auto& r) { r.prompt.assign(91, 1); }, {"91 tokens", "1 to 90"}},
        Case{"token_high", [](auto& r) { r.prompt[2] = 1000; }, {"prompt[2] is 1000", "[0, 999]"}},
        Case{"token_low", [](auto& r) { r.prompt[0] = -1; }, {"prompt[0] is -1"}},
        Case{"temperature",
             [](auto& r) { r.sampling.temperature = -0.1; },
             {"sampling.temperature is -0.1", "[0, 100]"}},
        Case{"temperature_nan",
             [](auto& r) { r.sampling.temperature = kNan; },
             {"sampling.temperature is nan"}},
        Case{"top_k",
             [](auto& r) { r.sampling.top_k = 1001; },
             {"sampling.top_k is 1001", "[0, 1000]"}},
        Case{"top_k_all", [](auto& r) { r.sampling.top_k = 1000; }, {}},
        Case{
            "top_p_zero", [](auto& r) { r.sampling.top_p = 0; }, {"sampling.top_p is 0", "(0, 1]"}},
        Case{"top_p_nan", [](auto& r) { r.sampling.top_p = kNan; }, {"sampling.top_p is nan"}},
        Case{"min_p", [](auto& r) { r.sampling.min_p = 1.5; }, {"sampling.min_p is 1.5"}},
        Case{"repetition",
             [](auto& r) { r.sampling.repetition_penalty = 0; },
             {"repetition_penalty is 0", "[0.01, 10]"}},
        Case{"presence",
             [](auto& r) { r.sampling.presence_penalty = 11; },
             {"presence_penalty is 11"}},
        Case{"frequency",
             [](auto& r) { r.sampling.frequency_penalty = -11; },
             {"frequency_penalty is -11"}},
        Case{"bias_token",
             [](auto& r) { r.sampling.logit_bias = {{1000, 1.f}}; },
             {"sampling.logit_bias[0] is 1000"}},
        Case{"bias_value",
             [](auto& r) { r.sampling.logit_bias = {{7, 101.f}}; },
             {"token 7", "101", "[-100, 100]"}},
        Case{"bias_twice",
             [](auto& r) { r.sampling.logit_bias = {{7, 1.f}, {7, 2.f}}; },
             {"token 7 twice"}},
        Case{"bias_many",
             [](auto& r) { r.sampling.logit_bias.resize(1025); },
             {"1025", "at most 1024"}},
        Case{"max_tokens_zero",
             [](auto& r) { r.stopping.max_tokens = 0; },
             {"max_tokens is 0", "[1, 97]"}},
        Case{"max_tokens_all", [](auto& r) { r.stopping.max_tokens = 97; }, {}},
        Case{"max_tokens_beyond",
             [](auto& r) { r.stopping.max_tokens = 98; },
             {"max_tokens is 98", "[1, 97]", "100", "3"}},
        Case{"min_tokens",
             [](auto& r) {
               r.stopping.max_tokens = 5;
               r.stopping.min_tokens = 6;
             },
             {"min_tokens is 6", "[0, 5]"}},
        Case{"stop_empty",
             [](auto& r) { r.stopping.stop_strings = {"a", ""}; },
             {"stop_strings[1] is 0", "1 to 256 bytes"}},
        Case{"stop_long",
             [](auto& r) { r.stopping.stop_strings = {std::string(257, 'a')}; },
             {"stop_strings[0] is 257"}},
        Case{"stop_many",
             [](auto& r) { r.stopping.stop_strings.assign(17, "a"); },
             {"17", "at most 16"}},
        Case{"stop_utf8",
             [](auto& r) { r.stopping.stop_strings = {"\xc3"}; },
             {"stop_strings[0] is not valid UTF-8"}},
        Case{"stop_id",
             [](auto& r) { r.stopping.stop_token_ids = {5, 1000}; },
             {"stop_token_ids[1] is 1000"}},
        Case{"stop_ids_many",
             [](auto& r) { r.stopping.stop_token_ids.assign(257, 1); },
             {"257", "at most 256"}},
        Case{"retention", [](auto& r) { r.kv.size = Retention{1.5}; }, {"1.5"}},
        Case{"allocator", [](auto& r) { r.kv.allocator = RippleAllocator{.r = 0.5}; }, {"0.5"}},
        Case{"selector", [](auto& r) { r.kv.selector = SnapKv{.kernel = 4}; }, {"4"}},
        Case{"logprobs", [](auto& r) { r.logprobs = 21; }, {"output.logprobs is 21", "[0, 20]"}}),
    [](const auto& test) { return test.param.name; });

TEST(EffectiveMaxTokensTest, TheDefaultIsClampedToTheContext) {
  GenerateRequest request = Valid();
  EXPECT_EQ(EffectiveMaxTokens(request, kLimits), 97);
  request.stopping.max_tokens = 12;
  EXPECT_EQ(EffectiveMaxTokens(request, kLimits), 12);
  request.stopping.max_tokens.reset();
  EXPECT_EQ(EffectiveMaxTokens(
                request, {.vocab_size = 1000, .context_length = 8192, .max_prompt_tokens = 8191}),
            256);
}

}  // namespace
}  // namespace ripplekv
