#include "client/fact_sheet.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "client/utf8.h"

namespace ripplekv {
namespace {

TEST(FactSheetTest, LabelsLineUpAndEmptyFactsGo) {
  FactSheet sheet;
  sheet.Add("model", {"SmolLM2", "", "llama"});
  sheet.Add("gone", {""});
  sheet.Add("KV", {"bf16"});
  EXPECT_EQ(sheet.Render({.utf8 = true}), "model  SmolLM2 · llama\nKV     bf16\n");
  EXPECT_EQ(sheet.Render({.utf8 = false}), "model  SmolLM2 | llama\nKV     bf16\n");
  EXPECT_EQ(FactSheet().Render({}), "");
}

TEST(FactSheetTest, FactsGoOnUnderTheFirst) {
  FactSheet sheet;
  sheet.Add("a", {"12345678", "12345678", "12345678"});
  // 3 columns of label, 8 + 3 + 8 = 19: the third fact does not fit 24 columns.
  EXPECT_EQ(sheet.Render({.utf8 = true, .width = 24}), "a  12345678 · 12345678\n   12345678\n");
}

TEST(FactSheetTest, NoLineIsWiderThanTheTerminal) {
  FactSheet sheet;
  sheet.Add("settings",
            {"one two", "eta 0.5 ± 0.1", "prefix 1,024", "window 64", "seed 18446744073709551615"});
  for (int width = 40; width <= 200; ++width) {
    for (const absl::string_view line :
         absl::StrSplit(sheet.Render({.utf8 = true, .width = width}), '\n')) {
      ASSERT_LE(Columns(line), width);
    }
  }
}

TEST(FactSheetTest, StylesTakeNoColumns) {
  FactSheet sheet;
  sheet.Add("label", {"12345678", "12345678"});
  EXPECT_EQ(sheet.Render({.utf8 = true, .color = true, .width = 26}),
            "\033[2mlabel\033[0m  12345678 · 12345678\n");
}

}  // namespace
}  // namespace ripplekv
