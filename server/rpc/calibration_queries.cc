#include "server/rpc/calibration_queries.h"

#include <cstdint>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "model/unicode.h"
#include "server/rpc/limits.h"
#include "server/rpc/profile_convert.h"
#include "server/rpc/status.h"

namespace ripplekv {
namespace {

constexpr char kCalibrationType[] = "ripplekv.v1.Calibration";

absl::Status CheckMeasures(const CalibrationBackend& backend) {
  if (backend.calibrator != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(backend.no_calibrator);
}

}  // namespace

absl::Status ListCalibrations(const CalibrationBackend& backend,
                              const v1::ListCalibrationsRequest& request,
                              v1::ListCalibrationsResponse* response) {
  if (absl::Status status = CheckMeasures(backend); !status.ok()) return status;
  if (request.page_size() < 0 || request.page_size() > kMaxPageSize) {
    return InvalidField("page_size",
                        absl::StrCat("is ", request.page_size(), ": must be 0 to ", kMaxPageSize));
  }
  int64_t before = 0;  // the number of the last one of the page before; they descend
  if (!request.page_token().empty() &&
      (!absl::SimpleAtoi(request.page_token(), &before) || before < 1)) {
    return InvalidField("page_token",
                        absl::StrCat("is '", Excerpt(request.page_token()),
                                     "': must be empty or a next_page_token of an earlier answer"));
  }
  const int size = request.page_size() == 0 ? kDefaultPageSize : request.page_size();
  int64_t last = 0;
  for (const CalibrationRecord& record : backend.calibrator->List()) {
    if (before > 0 && record.number >= before) continue;
    if (response->calibrations_size() == size) {
      response->set_next_page_token(absl::StrCat(last));
      break;
    }
    *response->add_calibrations() = CalibrationToProto(record);
    last = record.number;
  }
  return absl::OkStatus();
}

absl::Status CancelCalibration(const CalibrationBackend& backend,
                               const v1::CancelCalibrationRequest& request,
                               v1::CancelCalibrationResponse* response) {
  if (absl::Status status = CheckMeasures(backend); !status.ok()) return status;
  const std::string& job_id = request.job_id();
  if (job_id.empty()) {
    return InvalidField("job_id", "is empty: must be a job_id of ListCalibrations");
  }
  const absl::StatusOr<CalibrationRecord> record = backend.calibrator->Cancel(
      job_id, absl::StrCat("calibration ", job_id, " was cancelled by CancelCalibration"));
  if (absl::IsNotFound(record.status())) {
    return ResourceNotFound(kCalibrationType, Excerpt(job_id), record.status().message());
  }
  if (!record.ok()) return record.status();
  *response->mutable_calibration() = CalibrationToProto(*record);
  return absl::OkStatus();
}

}  // namespace ripplekv
