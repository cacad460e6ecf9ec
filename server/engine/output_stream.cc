#include "server/engine/output_stream.h"

#include <algorithm>
#include <string_view>

namespace ripplekv {
namespace {

bool Contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

OutputStream::OutputStream(const Tokenizer* tokenizer, absl::Span<const int32_t> end_of_text,
                           const StoppingParams& stopping, int32_t max_tokens)
    : decoder_(tokenizer, /*skip_special=*/true),
      stops_(stopping.stop_strings),
      stop_strings_(stopping.stop_strings),
      stop_token_ids_(stopping.stop_token_ids),
      ending_(stopping.stop_token_ids),
      min_tokens_(stopping.min_tokens),
      max_tokens_(max_tokens) {
  if (!stopping.ignore_eos) {
    end_of_text_.assign(end_of_text.begin(), end_of_text.end());
    ending_.insert(ending_.end(), end_of_text_.begin(), end_of_text_.end());
  }
}

void OutputStream::Feed(std::string_view text, Piece& piece) {
  StopMatcher::Result result = stops_.Push(text, tokens_ >= min_tokens_);
  piece.text += result.text;
  if (result.matched < 0) return;
  piece.finished = FinishReason::kStopString;
  piece.stop_string = stop_strings_[static_cast<size_t>(result.matched)];
}

OutputStream::Piece OutputStream::Push(int32_t token) {
  ++tokens_;
  Piece piece;
  if (Contains(stop_token_ids_, token)) {
    piece.finished = FinishReason::kStopTokenId;
  } else if (Contains(end_of_text_, token)) {
    piece.finished = FinishReason::kEndOfText;
  }
  if (piece.finished.has_value()) {
    piece.stop_token = token;
  } else {
    Feed(decoder_.Push(token), piece);
    if (!piece.finished.has_value() && tokens_ >= max_tokens_)
      piece.finished = FinishReason::kMaxTokens;
  }
  if (piece.finished.has_value() && piece.finished != FinishReason::kStopString) {
    // The text ends here: an unfinished character becomes U+FFFD, and what was held back is no stop
    // string.
    Feed(decoder_.Flush(), piece);
    if (piece.finished == FinishReason::kStopString) {
      piece.stop_token = -1;
    } else {
      piece.text += stops_.Flush();
    }
  }
  return piece;
}

}  // namespace ripplekv
