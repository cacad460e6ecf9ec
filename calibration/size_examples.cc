#include "calibration/size_examples.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ripplekv {
namespace {

using Texts = absl::Span<const std::vector<int32_t>>;

// Of the text that the last of MakeExamples' examples is cut from, the place of the next.
size_t AfterLastExample(Texts texts, const CalibrationSettings& settings) {
  const int64_t length = settings.example_tokens();
  int examples = 0;
  for (int64_t round = 1; examples < settings.examples; ++round) {
    const int before = examples;
    for (size_t t = 0; t < texts.size(); ++t) {
      if (static_cast<int64_t>(texts[t].size()) < round * length) continue;
      if (++examples == settings.examples) return (t + 1) % texts.size();
    }
    if (examples == before) break;
  }
  return 0;
}

// The last `length` tokens up to the end of a text without its last `left_out` ones, as far as
// there are so many.
std::vector<int32_t> EndingAt(Texts texts, size_t text, int64_t left_out, int64_t length) {
  std::vector<int32_t> reversed;
  const auto take = [&](const std::vector<int32_t>& from, int64_t skipped) {
    const int64_t wanted = length - static_cast<int64_t>(reversed.size());
    const int64_t there = static_cast<int64_t>(from.size()) - skipped;
    const auto first = from.rbegin() + skipped;
    reversed.insert(reversed.end(), first, first + std::min(wanted, there));
  };
  take(texts[text], left_out);
  for (size_t i = 1; i < texts.size() && static_cast<int64_t>(reversed.size()) < length; ++i) {
    take(texts[(text + texts.size() - i) % texts.size()], 0);
  }
  std::reverse(reversed.begin(), reversed.end());
  return reversed;
}

}  // namespace

absl::StatusOr<std::vector<std::vector<int32_t>>> MakeSizeExamples(
    Texts texts, const CalibrationSettings& settings) {
  std::vector<std::vector<int32_t>> examples;
  const auto wanted = static_cast<size_t>(settings.sizes.examples);
  if (wanted == 0) return examples;
  const int64_t length = settings.size_example_tokens();
  const size_t begin = AfterLastExample(texts, settings);
  for (int64_t round = 0; examples.size() < wanted; ++round) {
    const size_t before = examples.size();
    for (size_t i = 0; i < texts.size() && examples.size() < wanted; ++i) {
      const size_t t = (begin + i) % texts.size();
      // The window lies within its text.
      const int64_t least = round == 0 ? settings.window_tokens : (round + 1) * length;
      if (static_cast<int64_t>(texts[t].size()) < least) continue;
      std::vector<int32_t> example = EndingAt(texts, t, round * length, length);
      if (static_cast<int64_t>(example.size()) == length) examples.push_back(std::move(example));
    }
    if (examples.size() == before) {
      return absl::InvalidArgumentError(absl::StrCat(
          "size_examples is ", wanted, ": the corpus's ", texts.size(), " texts give ",
          examples.size(), " of ", settings.sizes.prompt_tokens.back(),
          " + window_tokens = ", length,
          " tokens; ask for fewer examples or shorter size_prompt_tokens, or give more or longer "
          "texts"));
    }
  }
  return examples;
}

}  // namespace ripplekv
