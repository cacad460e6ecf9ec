#pragma once

#include <string>

#include "client/terminal.h"
#include "ripplekv/v1/decode.pb.h"

namespace ripplekv {

// What a generation took: tokens, why it ended, the cache in full and as it was (bytes, positions,
// peak), speeds, and next_token_kl where it was measured. Several lines that fit the terminal, each
// ended by a line feed.
std::string RenderSummary(const v1::GenerateComplete& complete, const Terminal& terminal);

// The same in one line of at most the terminal's width, without a line feed, for between the turns
// of a chat.
std::string RenderShortSummary(const v1::GenerateComplete& complete, const Terminal& terminal);

// A line a token: its text, its log-probability, and the most probable ones at its place.
std::string RenderLogprobs(const google::protobuf::RepeatedPtrField<v1::TokenLogprob>& logprobs);

}  // namespace ripplekv
