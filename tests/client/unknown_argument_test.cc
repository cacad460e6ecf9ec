#include "client/unknown_argument.h"

#include <gtest/gtest.h>

namespace ripplekv {
namespace {

TEST(NearestName, IsTheOneWithTheFewestEdits) {
  const std::vector<std::string> names = {"--retention", "--model", "--max-batch", "--max-queue"};
  EXPECT_EQ(NearestName("--retentoin", names), "--retention");  // swapped
  EXPECT_EQ(NearestName("--retenton", names), "--retention");   // one less
  EXPECT_EQ(NearestName("--modell", names), "--model");         // one more
  EXPECT_EQ(NearestName("--max-patch", names), "--max-batch");  // another
  EXPECT_EQ(NearestName("--listen", names), "");
  EXPECT_EQ(NearestName("--x", names), "");
  EXPECT_EQ(NearestName("", names), "");
  EXPECT_EQ(NearestName("--model", {}), "");
}

TEST(DescribeUnknownArgument, NamesTheOptionRatherThanItsValue) {
  const std::vector<std::string> options = {"--retention", "--model"};
  EXPECT_EQ(DescribeUnknownArgument({"0.3", "--retentoin"}, options),
            "there is no option --retentoin; did you mean --retention?");
  EXPECT_EQ(DescribeUnknownArgument({"--modle=x.gguf"}, options),
            "there is no option --modle; did you mean --model?");
  EXPECT_EQ(DescribeUnknownArgument({"--other", "1"}, options), "there is no option --other");
  EXPECT_EQ(DescribeUnknownArgument({"stray"}, options),
            "'stray' is not expected: no option takes it");
}

}  // namespace
}  // namespace ripplekv
