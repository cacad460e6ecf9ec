#pragma once

#include <string>

#include "client/terminal.h"
#include "ripplekv/v1/decode.pb.h"

namespace ripplekv {

// A line a continuation under a head: its log-probability in total and per token, whether greedy
// decoding would write it, its tokens and its text; with a reference also its mean KL to the full
// cache and the share of tokens whose most probable one is the same. The likeliest in total stands
// out.
std::string RenderScores(const v1::ScoreResponse& response, const Terminal& terminal);

// What the call took: tokens, speed, the cache. Lines that fit the terminal.
std::string RenderScoreSummary(const v1::ScoreResponse& response, const Terminal& terminal);

}  // namespace ripplekv
