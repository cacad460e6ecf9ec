#pragma once

#include <cstdint>
#include <string>

#include "client/terminal.h"
#include "ripplekv/v1/calibration.pb.h"

namespace ripplekv {

// A bar a layer of b_l with uniform's level marked, the sum, and the bytes in full and as planned.
std::string RenderPlan(const v1::PlanBudgetsResponse& response, int64_t prompt_tokens,
                       const Terminal& terminal);

}  // namespace ripplekv
