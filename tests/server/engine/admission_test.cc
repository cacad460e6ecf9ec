#include "server/engine/admission.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "server/engine/too_large.h"

namespace ripplekv {
namespace {

Plan MakePlan(int layers, double retention, int64_t min_positions) {
  PlanSpec spec;
  spec.layers = layers;
  spec.size = Retention{retention};
  spec.min_positions = min_positions;
  auto plan = Plan::Make(spec);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

KvPageLayout Layout() {
  return KvPageLayout::For(KvType::kBf16, 3, 64,
                           KvPageLayout::BytesForRowsPerPage(KvType::kBf16, 3, 64, 32));
}

TEST(AdmissionTest, ReservesTheBudgetAndTheOutputInEveryLayer) {
  const Plan plan = MakePlan(30, 0.1, 0);
  auto admission = PlanAdmission(plan, {.prompt_tokens = 4000, .max_tokens = 256}, Layout());
  ASSERT_TRUE(admission.ok()) << admission.status();
  ASSERT_EQ(admission->capacity_rows.size(), 30u);
  for (int64_t rows : admission->capacity_rows) EXPECT_EQ(rows, 400 + 256);
  EXPECT_EQ(admission->pages, 30 * 21);  // ceil(656 / 32)
}

TEST(AdmissionTest, BoundedGrowthReservesItsCapOnly) {
  const Plan plan = MakePlan(30, 0.1, 0);  // floor 4 + 32 + 1
  auto admission =
      PlanAdmission(plan, {.prompt_tokens = 4000, .max_tokens = 2000, .growth_cap = 64}, Layout());
  ASSERT_TRUE(admission.ok()) << admission.status();
  for (int64_t rows : admission->capacity_rows) EXPECT_EQ(rows, 400 + 64);
  for (int64_t rows : admission->target_rows) EXPECT_EQ(rows, 400);
  // A short output never reaches the cap; a short prompt is compacted back to the floor.
  admission =
      PlanAdmission(plan, {.prompt_tokens = 4000, .max_tokens = 20, .growth_cap = 64}, Layout());
  for (int64_t rows : admission->capacity_rows) EXPECT_EQ(rows, 420);
  admission =
      PlanAdmission(plan, {.prompt_tokens = 5, .max_tokens = 2000, .growth_cap = 64}, Layout());
  for (int64_t rows : admission->target_rows) EXPECT_EQ(rows, 37);
  for (int64_t rows : admission->capacity_rows) EXPECT_EQ(rows, 37 + 64);
}

TEST(AdmissionTest, OverAContextOnlyItsOwnPagesCount) {
  const Plan plan = MakePlan(2, 0.1, 0);
  const std::vector<int64_t> base = {100, 64};
  const std::vector<KvTypes> types(2, KvType::kBf16);
  auto admission = PlanAdmission(
      plan, {.prompt_tokens = 20, .max_tokens = 10, .base_rows = base, .base_types = types},
      Layout());
  ASSERT_TRUE(admission.ok()) << admission.status();
  EXPECT_EQ(admission->budgets.layer, (std::vector<int64_t>{20, 20})) << "every row is kept";
  EXPECT_EQ(admission->capacity_rows, (std::vector<int64_t>{130, 94}));
  EXPECT_EQ(admission->target_rows, (std::vector<int64_t>{137, 101}));
  // 130 rows: pages 3 (4 rows of it copied) and 4; 94 rows: page 2.
  EXPECT_EQ(admission->pages, 2 + 1);
}

TEST(AdmissionTest, AFullCacheTakesPagesOfItsOwnLayout) {
  const Plan plan = MakePlan(2, 0.1, 0);
  const KvPageLayout full = FullCacheLayout(Layout());
  AdmissionRequest request = {.prompt_tokens = 1000};
  const int64_t without = PlanAdmission(plan, request, Layout())->pages;
  request.full_cache = &full;
  EXPECT_EQ(PlanAdmission(plan, request, Layout())->pages, without + 2 * full.PagesFor(1000));
  const int64_t pages = without + 2 * full.PagesFor(1000);
  EXPECT_TRUE(AdmitOrExplain(plan, request, Layout(), pages).ok());
  const absl::Status refused = AdmitOrExplain(plan, request, Layout(), pages - 1).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(refused.GetPayload(kTooLarge).has_value());
  EXPECT_NE(refused.message().find("the full cache beside them (reference)"),
            absl::string_view::npos)
      << refused;

  // Coarser rows: more of them in a page than of the full cache's.
  const KvPageLayout coarse = KvPageLayout::For(KvType::kInt4, KvType::kF32, 2, 16, 4096);
  EXPECT_EQ(FullCacheLayout(coarse).stored(), KvTypes(KvType::kF32));
  EXPECT_EQ(FullCacheLayout(coarse).page_bytes, coarse.page_bytes);
  EXPECT_LT(FullCacheLayout(coarse).rows_per_page, coarse.rows_per_page);
}

// Row of a KV head of 64: 64 + 4 bytes in int8, 32 + 8 in int4, 128 in bf16, and a position of 4.
TEST(AdmissionTest, PagesAreThoseOfEachLayersTypes) {
  const Plan plan = MakePlan(2, 0.1, 0);
  const KvPageLayout layout = Layout();
  const Plan stores = *plan.With({}, {}, KvTypes(KvType::kInt8, KvType::kBf16));
  auto admission = PlanAdmission(stores, {.prompt_tokens = 4000, .max_tokens = 256}, layout);
  ASSERT_TRUE(admission.ok()) << admission.status();
  ASSERT_EQ(admission->layouts.size(), 2u);
  for (const KvPageLayout& stored : admission->layouts) {
    EXPECT_EQ(stored.stored(), KvTypes(KvType::kInt8, KvType::kBf16));
    EXPECT_EQ(stored.page_bytes, layout.page_bytes);
    // 24,960 / (3 * (68 + 128 + 4)); a block would be over a fifth less.
    EXPECT_EQ(stored.rows_per_page, 41);
  }
  EXPECT_EQ(admission->pages, 2 * 16);  // ceil(656 / 41)

  const std::vector<int64_t> base = {100, 100};
  const std::vector<KvTypes> types = {KvType::kInt4, KvTypes(KvType::kBf16, KvType::kInt4)};
  admission = PlanAdmission(
      plan, {.prompt_tokens = 20, .max_tokens = 90, .base_rows = base, .base_types = types},
      layout);
  ASSERT_TRUE(admission.ok()) << admission.status();
  EXPECT_EQ(admission->layouts[0].stored(), types[0]);
  EXPECT_EQ(admission->layouts[1].stored(), types[1]);
  ASSERT_EQ(admission->layouts[0].rows_per_page, 96);
  ASSERT_EQ(admission->layouts[1].rows_per_page, 48);
  // 210 rows: pages 1 (2 rows of it copied) and 2; pages 2 (4 rows) to 4.
  EXPECT_EQ(admission->pages, 2 + 3);
}

// The number between two texts of a message, where both are there.
std::optional<int64_t> NumberBetween(const std::string& message, const std::string& before,
                                     const std::string& after) {
  const size_t begin = message.find(before);
  if (begin == std::string::npos) return std::nullopt;
  size_t used = 0;
  const std::string rest = message.substr(begin + before.size());
  const int64_t number = std::stoll(rest, &used);
  if (rest.compare(used, after.size(), after) != 0) return std::nullopt;
  return number;
}

TEST(AdmissionTest, TheLargestThatFitsIsExact) {
  std::mt19937 random(1);
  int by_output = 0, by_prompt = 0, none = 0;
  for (int round = 0; round < 300; ++round) {
    const int layers = static_cast<int>(1 + random() % 8);
    const Plan plan =
        MakePlan(layers, 0.05 + 0.001 * static_cast<double>(random() % 900), random() % 200);
    const int64_t prompt = 1 + random() % 4000;
    const int64_t output = 1 + random() % 500;
    const int64_t arena = 1 + random() % 400;
    const auto needed =
        PlanAdmission(plan, {.prompt_tokens = prompt, .max_tokens = output}, Layout());
    ASSERT_TRUE(needed.ok());
    const auto got =
        AdmitOrExplain(plan, {.prompt_tokens = prompt, .max_tokens = output}, Layout(), arena);
    ASSERT_EQ(got.ok(), needed->pages <= arena);
    if (got.ok()) continue;
    ASSERT_EQ(got.status().code(), absl::StatusCode::kFailedPrecondition);
    const std::string message(got.status().message());
    ASSERT_NE(message.find(std::to_string(needed->pages) + " KV pages"), std::string::npos)
        << message;
    auto fits = [&](int64_t p, int64_t o) {
      return PlanAdmission(plan, {.prompt_tokens = p, .max_tokens = o}, Layout())->pages <= arena;
    };
    if (auto n = NumberBetween(message, "max_tokens up to ", " would fit")) {
      ASSERT_TRUE(*n >= 1 && *n < output && fits(prompt, *n) && !fits(prompt, *n + 1)) << message;
      ++by_output;
    } else if (auto n = NumberBetween(message, "a prompt of up to ", " tokens would fit")) {
      ASSERT_TRUE(!fits(prompt, 1) && *n < prompt && fits(*n, output) && !fits(*n + 1, output))
          << message;
      ++by_prompt;
    } else {
      ASSERT_NE(message.find("no prompt fits"), std::string::npos) << message;
      ASSERT_TRUE(!fits(prompt, 1) && !fits(1, output));
      ++none;
    }
  }
  EXPECT_GT(by_output, 10);
  EXPECT_GT(by_prompt, 10);
  EXPECT_GT(none, 10);
}

}  // namespace
}  // namespace ripplekv
