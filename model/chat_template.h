#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/gguf.h"
#include "model/text_segment.h"
#include "model/tokenizer.h"

namespace ripplekv {

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

// What bounds the work of a template, which is a program out of a file.
struct TemplateLimits {
  size_t template_bytes = 256 << 10;
  int depth = 200;                 // nested blocks and expressions
  size_t output_bytes = 64 << 20;  // of the prompt and of each text on the way to it
  int64_t steps = 50'000'000;      // expressions evaluated, plus a quarter of all text bytes made
};

// A checkpoint's chat template: a Jinja program that writes a list of messages as one prompt.
// Rendered the way model authors test theirs (trim_blocks and lstrip_blocks on), by an interpreter
// of the subset that such templates use:
//   statements   for (with an `if` filter and else; loop.*), if/elif/else, set (also of a
//   namespace's attribute), break,
//                continue, comments, whitespace control
//   expressions  literals (string, integer, boolean, none, list), names, attributes, items, slices,
//   calls,
//                + - * // % ~, comparisons, in, and/or/not, a if c else b, filters, tests
//   functions    raise_exception, namespace
//   filters      trim length count upper lower tojson default d join first last string list replace
//   safe tests        defined undefined none string mapping sequence iterable number integer
//   boolean true false even odd methods      text: strip lstrip rstrip startswith endswith split
//   upper lower replace; mapping: get variables    messages, add_generation_prompt, bos_token,
//   eos_token, unk_token, pad_token; tools and documents, none
// (There is no clock: strftime_now is undefined, so that a prompt does not depend on the day.)
//
// Every byte of the result knows whether it came out of a message's content: filters, slices and
// concatenation keep that. Roles are the template's own, since only the three known ones are let
// in.
//
// Immutable, so one object serves many threads.
class ChatTemplate {
 public:
  // Texts of the special tokens; those that are absent are undefined in the template.
  struct TokenTexts {
    std::optional<std::string> bos, eos, unknown, padding;
  };

  // INVALID_ARGUMENT: not a valid template, or over a limit, naming the line. UNIMPLEMENTED: a
  // construct outside of the subset, naming it; raw text and token ids still work.
  static absl::StatusOr<ChatTemplate> Parse(std::string_view source, TokenTexts tokens,
                                            TemplateLimits limits = {});

  // The template in tokenizer.chat_template. FAILED_PRECONDITION if the file has none.
  static absl::StatusOr<ChatTemplate> FromGguf(const GgufFile& file, const Tokenizer& tokenizer);

  // The prompt, as segments for Tokenizer::EncodeSegments. `add_generation_prompt` opens the
  // assistant's turn. INVALID_ARGUMENT: no messages; a role outside of the three; content that is
  // not UTF-8; the template itself refuses the messages (raise_exception) or fails on them; a
  // limit. UNIMPLEMENTED: as for Parse.
  absl::StatusOr<std::vector<TextSegment>> Render(absl::Span<const ChatMessage> messages,
                                                  bool add_generation_prompt) const;

 private:
  struct Program;
  explicit ChatTemplate(std::shared_ptr<const Program> program);
  std::shared_ptr<const Program> program_;
};

}  // namespace ripplekv
