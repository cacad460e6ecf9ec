#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "model/tokenizer.h"
#include "server/engine/request.h"
#include "server/engine/stop_matcher.h"

namespace ripplekv {

/// Turns one request's tokens into text and decides when generation ends.
class OutputStream {
 public:
  /// `tokenizer` outlives the stream. end_of_text: the model's ending tokens.
  OutputStream(const Tokenizer* tokenizer, absl::Span<const int32_t> end_of_text,
               const StoppingParams& stopping, int32_t max_tokens);

  struct Piece {
    std::string text;
    std::optional<FinishReason> finished;  // then nothing may follow
    std::string stop_string;               // kStopString
    int32_t stop_token = -1;               // kEndOfText, kStopTokenId
  };
  Piece Push(int32_t token);

  int32_t tokens() const { return tokens_; }

  /// Tokens that may not come next: the ending ones, before min_tokens.
  absl::Span<const int32_t> banned() const {
    return tokens_ < min_tokens_ ? absl::MakeConstSpan(ending_) : absl::Span<const int32_t>();
  }

 private:
  void Feed(std::string_view text, Piece& piece);

  StreamDecoder decoder_;
  StopMatcher stops_;
  std::vector<std::string> stop_strings_;
  std::vector<int32_t> end_of_text_;
  std::vector<int32_t> stop_token_ids_;
  std::vector<int32_t> ending_;  // both
  int32_t min_tokens_;
  int32_t max_tokens_;
  int32_t tokens_ = 0;
};

}  // namespace ripplekv
