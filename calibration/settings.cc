#include "calibration/settings.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace ripplekv {
namespace {

absl::Status CheckRange(const char* field, int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ": must be between ", min, " and ", max));
}

constexpr double kDefaultDamageRetentions[] = {0.04, 0.06, 0.1, 0.2, 0.4, 0.7};

absl::Status CheckDamage(const CalibrationSettings& settings) {
  const std::vector<double>& retentions = settings.damage_retentions;
  if (absl::Status s =
          CheckRange("damage_examples", settings.damage_examples, 0, settings.examples);
      !s.ok()) {
    return s;
  }
  if (settings.damage_examples == 0) {
    if (retentions.empty() && !settings.damage_storage) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "damage_examples is 0: must be at least 1 where damage_retentions or damage_storage ask "
        "for a measurement");
  }
  if (retentions.empty() && !settings.damage_storage) {
    return absl::InvalidArgumentError(
        absl::StrCat("damage_examples is ", settings.damage_examples,
                     ": must be 0 where neither damage_retentions nor damage_storage ask for a "
                     "measurement"));
  }
  if (retentions.size() > static_cast<size_t>(kMaxDamageRetentions)) {
    return absl::InvalidArgumentError(absl::StrCat("damage_retentions has ", retentions.size(),
                                                   " values: must be at most ",
                                                   kMaxDamageRetentions));
  }
  for (size_t i = 0; i < retentions.size(); ++i) {
    const std::string field = absl::StrCat("damage_retentions[", i, "] is ", retentions[i]);
    if (!(retentions[i] > 0 && retentions[i] < 1)) {
      return absl::InvalidArgumentError(absl::StrCat(field, ": must be above 0 and below 1"));
    }
    if (i > 0 && retentions[i] <= retentions[i - 1]) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ": must be above the one before, ", retentions[i - 1]));
    }
    if (settings.DamageRows(retentions[i]) < settings.LeastDamageRows()) {
      return absl::InvalidArgumentError(absl::StrCat(
          field, ", ", settings.DamageRows(retentions[i]), " of ", settings.prefix_tokens,
          " prefix rows: must keep at least ", settings.LeastDamageRows(), ", the ", settings.sinks,
          " sinks and the selector's window of ", DamageSelector().window));
    }
  }
  return absl::OkStatus();
}

}  // namespace

int64_t CalibrationSettings::DamageRows(double retention) const {
  // As plans round a retention (calibration/policy/budgets.h): 0.29 of 100 is 29.
  return std::min(static_cast<int64_t>(retention * prefix_tokens + 1e-6), int64_t{prefix_tokens});
}

int64_t CalibrationSettings::LeastDamageRows() const {
  return int64_t{sinks} + DamageSelector().window;
}

std::vector<double> CalibrationSettings::DefaultDamageRetentions() const {
  std::vector<double> retentions;
  for (const double retention : kDefaultDamageRetentions) {
    if (DamageRows(retention) >= LeastDamageRows()) retentions.push_back(retention);
  }
  return retentions;
}

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
  if (absl::Status s = CheckDamage(*this); !s.ok()) return s;
  if (example_tokens() > context_length) {
    return absl::InvalidArgumentError(absl::StrCat(
        "prefix_tokens + window_tokens is ", example_tokens(), " (", prefix_tokens, " + ",
        window_tokens, "): must be at most the model's context length, ", context_length));
  }
  return absl::OkStatus();
}

}  // namespace ripplekv
