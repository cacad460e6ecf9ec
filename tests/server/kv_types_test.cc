#include "server/kv_types.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ripplekv {
namespace {

TEST(KvTypesTest, ReadsWhatItWrites) {
  for (KvType k : kKvTypes) {
    for (KvType v : kKvTypes) {
      const auto read = ParseKvTypes(KvTypesName({k, v}));
      ASSERT_TRUE(read.ok()) << read.status();
      ASSERT_TRUE(read->has_value());
      EXPECT_EQ(**read, KvTypes(k, v));
      const auto both = ParseKvTypes(std::string(KvTypeName(k)) + ":" + KvTypeName(v));
      ASSERT_TRUE(both.ok()) << both.status();
      EXPECT_EQ(**both, KvTypes(k, v));
    }
  }
  EXPECT_EQ(KvTypesName(KvType::kInt8), "int8");
  EXPECT_EQ(KvTypesName({KvType::kInt8, KvType::kInt4}), "int8:int4");
  EXPECT_FALSE(ParseKvTypes("compute")->has_value());
  EXPECT_EQ(**ParseKvTypes("auto"), KvTypes(KvType::kInt8));
}

TEST(KvTypesTest, NamesTheTextAndTheChoices) {
  for (const char* text :
       {"", ":", "fp16", "int8:", ":int8", "int8:int8:int8", "INT8", "auto:int8", " int8"}) {
    const auto types = ParseKvTypes(text);
    ASSERT_FALSE(types.ok()) << text;
    const std::string message(types.status().message());
    EXPECT_NE(message.find("'" + std::string(text) + "'"), std::string::npos) << message;
    EXPECT_NE(message.find("auto|fp32|bf16|int8|int4|KEYS:VALUES"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace ripplekv
