#include "client/bad_value.h"

#include <gtest/gtest.h>

namespace ripplekv {
namespace {

TEST(DescribeBadValue, SaysWhatIsWrongInPlainWords) {
  EXPECT_EQ(DescribeBadValue("ConversionError", "Could not convert: --max-tokens = many"),
            "--max-tokens: 'many' is not a value that it takes");
  EXPECT_EQ(DescribeBadValue("ConversionError", "Could not convert: --text = a = b"),
            "--text: 'a = b' is not a value that it takes");
  EXPECT_EQ(DescribeBadValue("ArgumentMismatch", "--model: 1 required FILE missing"),
            "--model needs a value");
}

TEST(DescribeBadValue, LeavesOtherTextsAsTheyAre) {
  for (const char* said : {"--max-tokens: 'x' is not a number", "", "many missing"}) {
    EXPECT_EQ(DescribeBadValue("ValidationError", said), said);
    EXPECT_EQ(DescribeBadValue("ConversionError", said), said);
  }
}

}  // namespace
}  // namespace ripplekv
