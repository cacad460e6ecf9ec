#pragma once

#include <string>

#include "client/terminal.h"
#include "ripplekv/v1/profile.pb.h"

namespace ripplekv {

// The whole model's mean KL by size, a line a retention and a column a prompt length, and the plan
// that it was measured under. Empty where it was not measured.
std::string RenderSizes(const v1::Profile& profile, const Terminal& terminal);

}  // namespace ripplekv
