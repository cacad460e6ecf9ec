#include "calibration/settings.h"

#include "absl/strings/str_cat.h"

namespace ripplekv {
namespace {

absl::Status CheckRange(const char* field, int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ": must be between ", min, " and ", max));
}

}  // namespace

absl::Status CalibrationSettings::Validate(int64_t context_length) const {
  absl::Status status = CheckRange("examples", examples, 1, 4096);
  status.Update(CheckRange("prefix_tokens", prefix_tokens, 2, 1048576));
  status.Update(CheckRange("window_tokens", window_tokens, 1, 65536));
  status.Update(CheckRange("sinks", sinks, 0, 65536));
  status.Update(CheckRange("recent", recent, 0, 65536));
  if (!(eta >= 0 && eta <= 10)) {
    status.Update(
        absl::InvalidArgumentError(absl::StrCat("eta is ", eta, ": must be between 0 and 10")));
  }
  if (!status.ok()) return status;
  if (int64_t{sinks} + recent >= prefix_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("sinks + recent is ", int64_t{sinks} + recent, " (", sinks, " + ", recent,
                     "): must be below prefix_tokens (", prefix_tokens,
                     "), so that a position is left to perturb"));
  }
  if (example_tokens() > context_length) {
    return absl::InvalidArgumentError(absl::StrCat(
        "prefix_tokens + window_tokens is ", example_tokens(), " (", prefix_tokens, " + ",
        window_tokens, "): must be at most the model's context length, ", context_length));
  }
  return absl::OkStatus();
}

}  // namespace ripplekv
