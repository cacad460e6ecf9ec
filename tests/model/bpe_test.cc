#include "model/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace ripplekv {
namespace {

using Ids = absl::flat_hash_map<std::string, int32_t>;

std::vector<int32_t> Apply(const BpeMerges& merges, const std::vector<int32_t>& symbols) {
  BpeMerges::Scratch scratch;
  std::vector<int32_t> out;
  merges.Apply(symbols, scratch, out);
  return out;
}

// The definition: again and again, the listed merge of lowest rank, at its leftmost place.
std::vector<int32_t> ApplyByDefinition(const std::vector<std::string>& merges, const Ids& ids,
                                       std::vector<int32_t> symbols) {
  for (;;) {
    size_t best_rank = merges.size(), best_at = 0;
    for (size_t at = 0; at + 1 < symbols.size(); ++at) {
      for (size_t rank = 0; rank < best_rank; ++rank) {
        const size_t space = merges[rank].find(' ');
        if (ids.at(merges[rank].substr(0, space)) == symbols[at] &&
            ids.at(merges[rank].substr(space + 1)) == symbols[at + 1]) {
          best_rank = rank;
          best_at = at;
        }
      }
    }
    if (best_rank == merges.size()) return symbols;
    std::string merged = merges[best_rank];
    merged.erase(merged.find(' '), 1);
    symbols[best_at] = ids.at(merged);
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best_at) + 1);
  }
}

TEST(BpeMerges, EqualsTheDefinitionOnRandomVocabularies) {
  std::mt19937 rng(1);
  size_t shortened = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<std::string> tokens = {"a", "b", "c"};
    Ids ids = {{"a", 0}, {"b", 1}, {"c", 2}};
    std::vector<std::string> merges;
    for (int i = 0; i < 20; ++i) {
      const std::string left = tokens[rng() % tokens.size()], right = tokens[rng() % tokens.size()];
      const std::string merge = left + " " + right;
      if (std::find(merges.begin(), merges.end(), merge) != merges.end()) continue;
      merges.push_back(merge);
      if (ids.emplace(left + right, static_cast<int32_t>(tokens.size())).second)
        tokens.push_back(left + right);
    }
    const auto bpe = BpeMerges::Create(merges, ids);
    ASSERT_TRUE(bpe.ok()) << bpe.status();
    for (int text = 0; text < 20; ++text) {
      std::vector<int32_t> symbols(rng() % 40);
      for (int32_t& symbol : symbols) symbol = static_cast<int32_t>(rng() % 3);
      const std::vector<int32_t> expected = ApplyByDefinition(merges, ids, symbols);
      ASSERT_EQ(Apply(*bpe, symbols), expected);
      shortened += expected.size() < symbols.size();
    }
  }
  EXPECT_GT(shortened, 2000u);
}

TEST(BpeMerges, TakesTheLeftmostOfEqualPairs) {
  const Ids ids = {{"a", 0}, {"aa", 1}};
  const auto bpe = BpeMerges::Create({"a a"}, ids);
  ASSERT_TRUE(bpe.ok());
  EXPECT_EQ(Apply(*bpe, {0, 0, 0}), (std::vector<int32_t>{1, 0}));
  EXPECT_EQ(Apply(*bpe, {}), std::vector<int32_t>{});
  EXPECT_EQ(Apply(*bpe, {0}), std::vector<int32_t>{0});
}

TEST(BpeMerges, NamesABrokenMerge) {
  const Ids ids = {{"a", 0}, {"b", 1}, {"ab", 2}};
  const auto message = [&](std::vector<std::string> merges) {
    const auto made = BpeMerges::Create(merges, ids);
    EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(made.status().message());
  };
  EXPECT_THAT(message({"a b", "ab"}), testing::HasSubstr("merge 1 'ab'"));
  EXPECT_THAT(message({"a b c"}), testing::HasSubstr("merge 0 'a b c'"));
  EXPECT_THAT(message({" b"}), testing::HasSubstr("two tokens"));
  EXPECT_THAT(message({"a x"}), testing::HasSubstr("does not have"));
  EXPECT_THAT(message({"b a"}), testing::HasSubstr("does not have"));
  EXPECT_THAT(message({"a b", "a b"}), testing::HasSubstr("listed twice"));
}

}  // namespace
}  // namespace ripplekv
