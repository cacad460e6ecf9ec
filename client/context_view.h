#pragma once

#include <string>

#include "client/terminal.h"
#include "ripplekv/v1/decode.pb.h"

namespace ripplekv {

// What a context holds and takes, when it was made and until when it stays: its id, then lines that
// fit the terminal.
std::string RenderContext(const v1::Context& context, const Terminal& terminal);

}  // namespace ripplekv
