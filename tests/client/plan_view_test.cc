#include "client/plan_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/str_split.h"
#include "client/utf8.h"
#include "tests/client/message_builders.h"

namespace ripplekv {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(PlanViewTest, SaysBudgetsSumAndBytes) {
  const std::string view = RenderPlan(TestPlan({300, 100, 200}), 1000, {.utf8 = true, .width = 40});
  EXPECT_THAT(view, HasSubstr("prompt  1,000 tokens\n"));
  EXPECT_THAT(view, HasSubstr("ripple (r 1.5, gamma 16)\n"));
  EXPECT_THAT(view, HasSubstr("from profile cccccccccccc\n"));
  EXPECT_THAT(view, HasSubstr("│ uniform: 200\n"));
  // 40 columns less label, texts of 11 and two spaces: 26 cells; 200 of 300 is cell 17.
  EXPECT_THAT(view, HasSubstr("\n0 █████████████████┃████████ 300  ×1.500\n"
                              "1 ████████▋        │         100  ×0.500\n"
                              "2 █████████████████│         200  ×1.000\n"));
  EXPECT_THAT(view, HasSubstr("600 of 3,000 positions"));
  EXPECT_THAT(view, HasSubstr("least 100 (layer 1)"));
  EXPECT_THAT(view, HasSubstr("450.0 KiB planned"));
  EXPECT_THAT(view, HasSubstr("2.2 MiB in full"));
  EXPECT_THAT(view, Not(HasSubstr("note")));
}

TEST(PlanViewTest, SaysWhatWasChanged) {
  v1::PlanBudgetsResponse response = TestPlan({300, 300});
  response.set_requested_positions(400);
  response.set_raised(true);
  EXPECT_THAT(RenderPlan(response, 1000, {}),
              HasSubstr("raised from 400 positions to 256 a layer"));
  response.set_raised(false);
  response.set_clamped(true);
  EXPECT_THAT(RenderPlan(response, 1000, {}), HasSubstr("clamped from 400 positions"));
  response.set_clamped(false);
  response.set_full(true);
  EXPECT_THAT(RenderPlan(response, 1000, {}), HasSubstr("not compressed"));
}

TEST(PlanViewTest, SaysTheTypesThatWereChosen) {
  v1::PlanBudgetsResponse response = TestPlan({300, 100});
  EXPECT_THAT(RenderPlan(response, 1000, {}), Not(HasSubstr("layer by layer")));
  response.mutable_plan()->set_chooses_types(true);
  response.set_byte_budget(4096);
  response.mutable_layers(0)->set_key_type(v1::KV_TYPE_INT8);
  response.mutable_layers(0)->set_value_type(v1::KV_TYPE_INT4);
  response.mutable_layers(1)->set_key_type(v1::KV_TYPE_BF16);
  response.mutable_layers(1)->set_value_type(v1::KV_TYPE_BF16);
  const std::string view = RenderPlan(response, 1000, {});
  EXPECT_THAT(view, HasSubstr("chosen layer by layer"));
  EXPECT_THAT(view, HasSubstr("4.0 KiB of rows at most"));
  EXPECT_THAT(view, HasSubstr("1.500  int8:int4\n"));
  EXPECT_THAT(view, HasSubstr("0.500  bf16\n"));
}

TEST(PlanViewTest, SaysHowManyRequestsFitAndWhy) {
  v1::PlanBudgetsResponse response = TestPlan({300, 100, 200});
  EXPECT_THAT(RenderPlan(response, 1000, {}), Not(HasSubstr("at once")));
  v1::Capacity& capacity = *response.mutable_capacity();
  capacity.set_requests(12);
  capacity.set_by_kv_memory(12);
  capacity.set_by_work_memory(30);
  capacity.set_max_batch(16);
  capacity.set_output_tokens(256);
  capacity.set_request_pages(1650);
  capacity.set_pages(20000);
  capacity.set_page_bytes(1024);
  capacity.set_request_work_bytes(2 << 20);
  const std::string view = RenderPlan(response, 1000, {});
  EXPECT_THAT(view, HasSubstr("12 requests of 1,000 + 256 tokens at once"));
  EXPECT_THAT(view, HasSubstr("limited by KV memory"));
  EXPECT_THAT(view, HasSubstr("1,650 of 20,000 pages"));
  EXPECT_THAT(view, HasSubstr("1.6 MiB"));
  EXPECT_THAT(view, HasSubstr("2.0 MiB of work memory"));
  capacity.set_requests(5);
  capacity.set_by_work_memory(5);
  EXPECT_THAT(RenderPlan(response, 1000, {}), HasSubstr("limited by --work-memory"));
  capacity.set_by_work_memory(30);
  capacity.set_max_batch(5);
  EXPECT_THAT(RenderPlan(response, 1000, {}), HasSubstr("limited by --max-batch"));
}

TEST(PlanViewTest, OtherModelsPlansHaveNoBytes) {
  v1::PlanBudgetsResponse response = TestPlan({300, 300});
  response.clear_kv_bytes();
  response.clear_full_kv_bytes();
  EXPECT_THAT(RenderPlan(response, 1000, {}), Not(HasSubstr("KV bytes")));
}

TEST(PlanViewTest, ConstantOneLayerAndEmptyPlansAreFreeOfNan) {
  for (const std::vector<int>& positions : {std::vector<int>(30, 200), std::vector<int>{1},
                                            std::vector<int>{0, 0}, std::vector<int>{}}) {
    const std::string view = RenderPlan(TestPlan(positions), 1000, {.utf8 = true});
    EXPECT_THAT(view, Not(HasSubstr("nan")));
    EXPECT_THAT(view, Not(HasSubstr("inf")));
  }
}

TEST(PlanViewTest, EveryWidthIsKept) {
  std::vector<int> positions;
  for (int l = 0; l < 80; ++l) positions.push_back(1000000 + l);
  for (int width = 50; width <= 200; ++width) {
    for (const bool utf8 : {false, true}) {
      for (const absl::string_view line : absl::StrSplit(
               RenderPlan(TestPlan(positions), 1000000000, {.utf8 = utf8, .width = width}), '\n')) {
        ASSERT_LE(Columns(line), width) << line;
      }
    }
  }
}

}  // namespace
}  // namespace ripplekv
