#pragma once

#include "absl/status/status.h"
#include "server/rpc/calibration_service.h"

namespace ripplekv {

// What ListCalibrations and CancelCalibration answer. FAILED_PRECONDITION where this process does
// not measure; INVALID_ARGUMENT: not a page size, page token or job id.
absl::Status ListCalibrations(const CalibrationBackend& backend,
                              const v1::ListCalibrationsRequest& request,
                              v1::ListCalibrationsResponse* response);
// NOT_FOUND with ResourceInfo; FAILED_PRECONDITION naming the state of one that has ended.
absl::Status CancelCalibration(const CalibrationBackend& backend,
                               const v1::CancelCalibrationRequest& request,
                               v1::CancelCalibrationResponse* response);

}  // namespace ripplekv
