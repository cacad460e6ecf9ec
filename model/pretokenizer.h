#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ripplekv {

// Cuts text into the pieces that byte-pair merges never cross. Patterns are compiled once; match
// state is per call, so one object serves many threads.
class PreTokenizer {
 public:
  // `name` is the checkpoint's tokenizer.ggml.pre:
  //   "gpt-2"   the GPT-2 pattern
  //   "smollm"  every character of Unicode's category N alone, then the GPT-2 pattern on what lies
  //   between
  // UNIMPLEMENTED for another name, with this list.
  static absl::StatusOr<PreTokenizer> Create(std::string_view name);

  // Calls `piece` for every piece of `text` in order; together they are exactly `text`, which must
  // be valid UTF-8. INTERNAL when the regular expression engine gives up.
  absl::Status Split(std::string_view text, absl::FunctionRef<void(std::string_view)> piece) const;

 private:
  class Pattern;
  absl::Status SplitFrom(size_t stage, std::string_view text,
                         absl::FunctionRef<void(std::string_view)> piece) const;

  // Applied one after the other: a match and the text between two matches are each a piece for the
  // next.
  std::vector<std::shared_ptr<const Pattern>> stages_;
};

}  // namespace ripplekv
