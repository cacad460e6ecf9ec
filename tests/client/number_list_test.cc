#include "client/number_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ripplekv {
namespace {

using testing::DoubleEq;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(NumberListTest, TokenIdsInEveryNotation) {
  for (const char* text :
       {"1 2 49151", "1,2,49151\n", "[1, 2, 49151]", " [ 1\n2\t49151 ]\n", "1, 2,\n49151,"}) {
    const auto ids = ParseTokenIds(text);
    ASSERT_TRUE(ids.ok()) << text << ": " << ids.status();
    EXPECT_THAT(*ids, ElementsAre(1, 2, 49151)) << text;
  }
}

TEST(NumberListTest, WhatIsNoTokenIdIsNamed) {
  EXPECT_THAT(ParseTokenIds("1 2 x3").status().message(),
              HasSubstr("number 3 is 'x3': not a token id"));
  EXPECT_THAT(ParseTokenIds("1 -2").status().message(), HasSubstr("number 2 is '-2'"));
  EXPECT_THAT(ParseTokenIds("2147483648").status().message(), HasSubstr("2147483648"));
  EXPECT_THAT(ParseTokenIds("1.5").status().message(), HasSubstr("1.5"));
  EXPECT_THAT(ParseTokenIds("[1, 2").status().message(), HasSubstr("bracket"));
  EXPECT_THAT(ParseTokenIds("1]").status().message(), HasSubstr("bracket"));
  for (const char* empty : {"", " \n", "[]", "[ , ]"}) {
    EXPECT_THAT(ParseTokenIds(empty).status().message(), HasSubstr("no token id")) << empty;
  }
  EXPECT_FALSE(ParseTokenIds("[").ok());
  EXPECT_LT(ParseTokenIds(std::string(100000, 'x')).status().message().size(), 200u);
}

TEST(NumberListTest, SensitivitiesFromNumbersAndFromAProfile) {
  const auto numbers = ParseSensitivities("0.5, 0\n1e-3");
  ASSERT_TRUE(numbers.ok()) << numbers.status();
  EXPECT_THAT(*numbers, ElementsAre(DoubleEq(0.5), DoubleEq(0), DoubleEq(1e-3)));
  const auto profile = ParseSensitivities(
      R"( {"profile": {"layers": [{"layer": 0, "mean_kl": 0.25}, {"layer": 1, "mean_kl": 3}]}, "in_force": true})");
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_THAT(*profile, ElementsAre(DoubleEq(0.25), DoubleEq(3)));
}

TEST(NumberListTest, SensitivitiesThatAreNone) {
  for (const char* text : {"nan", "inf", "-1", "0.5 x", "", "{", "{}", "{\"profile\": 3}",
                           "{\"profile\": {\"layers\": [1]}}", "{\"profile\": {\"layers\": []}}",
                           "{\"profile\": {\"layers\": [{\"mean_kl\": \"x\"}]}}"}) {
    EXPECT_FALSE(ParseSensitivities(text).ok()) << text;
  }
}

}  // namespace
}  // namespace ripplekv
