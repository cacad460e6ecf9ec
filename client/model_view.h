#pragma once

#include <string>

#include "client/terminal.h"
#include "ripplekv/v1/decode.pb.h"

namespace ripplekv {

// The loaded model, its cache, what a request gets that says nothing, limits and versions.
std::string RenderModel(const v1::GetModelResponse& response, const Terminal& terminal);

}  // namespace ripplekv
