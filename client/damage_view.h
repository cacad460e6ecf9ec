#pragma once

#include <string>

#include "client/terminal.h"
#include "ripplekv/v1/profile.pb.h"

namespace ripplekv {

// What compressing each layer alone costs, a line a layer, in as many blocks of columns as the
// terminal's width asks for; then how well rankings of the layers agree with it. Empty where it was
// not measured.
std::string RenderDamage(const v1::Profile& profile, const Terminal& terminal);

}  // namespace ripplekv
