#include "client/context_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_split.h"
#include "client/utf8.h"
#include "tests/client/message_builders.h"

namespace ripplekv {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

TEST(ContextViewTest, SaysWhatItHoldsAndHowLong) {
  v1::Context context = TestContext();
  const Terminal terminal = {.utf8 = true, .width = 100};
  EXPECT_THAT(RenderContext(context, terminal),
              AllOf(StartsWith(std::string(32, 'b') + "\n"), HasSubstr("4,096 tokens · a chat"),
                    HasSubstr("planned without a profile"), HasSubstr("mean 829 of 4,096 a layer"),
                    HasSubstr("18.2 MiB of 90.0 MiB · 20.2 % · 20.0 MiB in pages"),
                    HasSubstr("2026-09-10 00:26:40 UTC"),
                    HasSubstr("not for 42.0 s · expires 2026-09-10 01:26:40 UTC")));
  context.set_users(2);
  context.set_profile_id(std::string(64, 'c'));
  EXPECT_THAT(RenderContext(context, terminal),
              AllOf(HasSubstr("by 2 now"), Not(HasSubstr("expire")),
                    HasSubstr("planned from profile cccccccccccc")));
  context.set_users(0);
  context.clear_expires_at();
  EXPECT_THAT(RenderContext(context, terminal), HasSubstr("does not expire"));
  EXPECT_THAT(RenderContext({}, terminal), Not(HasSubstr("nan")));
}

TEST(ContextViewTest, EveryWidthIsKept) {
  for (int width = 60; width <= 140; ++width) {
    for (const absl::string_view line :
         absl::StrSplit(RenderContext(TestContext(), {.width = width}), '\n')) {
      ASSERT_LE(Columns(line), width) << line;
    }
  }
}

}  // namespace
}  // namespace ripplekv
