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

// How many windows a text gives: one where it is longer than one, more where it goes on behind the
// shortest prompt and a window.
int64_t MostWindows(int64_t tokens, const CalibrationSettings& settings) {
  const int64_t window = settings.window_tokens;
  const int64_t behind = tokens - settings.sizes.prompt_tokens.front() - window;
  return std::max<int64_t>(tokens >= window ? 1 : 0, behind / window);
}

}  // namespace

absl::StatusOr<std::vector<std::vector<int32_t>>> MakeSizeExamples(
    Texts texts, const CalibrationSettings& settings) {
  const auto wanted = static_cast<size_t>(settings.sizes.examples);
  const int64_t length = wanted == 0 ? 0 : settings.size_example_tokens();
  const size_t begin = AfterLastExample(texts, settings);
  // The texts that end an example, by rounds: (place, how many it has ended before).
  std::vector<std::pair<size_t, int64_t>> places;
  std::vector<int64_t> windows(texts.size(), 0);
  for (size_t before = 0; places.size() < wanted; before = places.size()) {
    for (size_t i = 0; i < texts.size() && places.size() < wanted; ++i) {
      const size_t t = (begin + i) % texts.size();
      if (windows[t] >= MostWindows(static_cast<int64_t>(texts[t].size()), settings)) continue;
      places.emplace_back(t, windows[t]++);
    }
    if (places.size() == before) break;
  }
  std::vector<std::vector<int32_t>> examples;
  for (const auto& [t, number] : places) {
    const int64_t behind = static_cast<int64_t>(texts[t].size()) -
                           settings.sizes.prompt_tokens.front() - settings.window_tokens;
    const int64_t left_out = number * behind / windows[t];
    std::vector<int32_t> example = EndingAt(texts, t, left_out, length);
    if (static_cast<int64_t>(example.size()) == length) examples.push_back(std::move(example));
  }
  if (examples.size() == wanted) return examples;
  return absl::InvalidArgumentError(absl::StrCat(
      "size_examples is ", wanted, ": the corpus's ", texts.size(), " texts give ", examples.size(),
      " of ", settings.sizes.prompt_tokens.back(), " + window_tokens = ", length,
      " tokens; ask for fewer examples or shorter size_prompt_tokens, or give more or longer "
      "texts"));
}

}  // namespace ripplekv
