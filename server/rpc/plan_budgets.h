#pragma once

#include "absl/status/status.h"
#include "server/rpc/calibration_service.h"

namespace ripplekv {

// What PlanBudgets answers: pure arithmetic on the request and the plan in force. INVALID_ARGUMENT
// names field, value and range; NOT_FOUND: the profile; FAILED_PRECONDITION: an allocator that
// needs sensitivities where there are none.
absl::Status PlanBudgets(const CalibrationBackend& backend, const v1::PlanBudgetsRequest& request,
                         v1::PlanBudgetsResponse* response);

}  // namespace ripplekv
