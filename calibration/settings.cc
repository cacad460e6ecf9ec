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
constexpr double kDefaultSizeRetentions[] = {0.05, 0.1, 0.2, 0.3, 0.5, 1};
constexpr int kDefaultSizePrompts = 3;
constexpr int kMaxPlanSinks = 1024;  // of plans (calibration/policy/plan.h)

// Of the prompt, as plans round a retention (calibration/policy/budgets.h): 0.29 of 100 is 29.
int64_t RowsOf(double retention, int64_t tokens) {
  return std::min(static_cast<int64_t>(retention * static_cast<double>(tokens) + 1e-6), tokens);
}

// Ascending, each above 0 and, as `with_one` says, below 1 or at most 1.
absl::Status CheckRetentions(const char* name, const std::vector<double>& retentions, int most,
                             bool with_one) {
  if (retentions.size() > static_cast<size_t>(most)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " has ", retentions.size(), " values: must be at most ", most));
  }
  for (size_t i = 0; i < retentions.size(); ++i) {
    const std::string field = absl::StrCat(name, "[", i, "] is ", retentions[i]);
    if (!(retentions[i] > 0 && (retentions[i] < 1 || (with_one && retentions[i] == 1)))) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ": must be above 0 and ", with_one ? "at most 1" : "below 1"));
    }
    if (i > 0 && retentions[i] <= retentions[i - 1]) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ": must be above the one before, ", retentions[i - 1]));
    }
  }
  return absl::OkStatus();
}

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
  if (absl::Status s =
          CheckRetentions("damage_retentions", retentions, kMaxDamageRetentions, false);
      !s.ok()) {
    return s;
  }
  for (size_t i = 0; i < retentions.size(); ++i) {
    if (settings.DamageRows(retentions[i]) < settings.LeastDamageRows()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "damage_retentions[", i, "] is ", retentions[i], ", ", settings.DamageRows(retentions[i]),
          " of ", settings.prefix_tokens, " prefix rows: must keep at least ",
          settings.LeastDamageRows(), ", the ", settings.sinks,
          " sinks and the selector's window of ", SelectorWindow(settings.selector)));
    }
  }
  return absl::OkStatus();
}

// What the plan of the sizes is made of, but for what depends on the model.
absl::Status CheckSizePlan(const CalibrationSettings& settings) {
  const SizeSettings& sizes = settings.sizes;
  if (absl::Status s = ValidateAllocator(sizes.allocator); !s.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("size_allocator: ", s.message()));
  }
  if (absl::Status s = CheckRange("sinks", settings.sinks, 0, kMaxPlanSinks); !s.ok()) return s;
  const std::string name = AllocatorName(sizes.allocator);
  const auto refused = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("size_allocator is ", name, ": ", why, " where size_examples are measured"));
  };
  if (std::holds_alternative<PositionsAllocator>(sizes.allocator)) {
    return refused("must be another, since its sizes do not vary,");
  }
  if (NeededMeasurement(sizes.allocator) == Measurement::kDamage) {
    if (settings.damage_retentions.empty()) {
      return refused("needs damage_examples with damage_retentions");
    }
  }
  const auto* isolated = std::get_if<IsolatedDamageAllocator>(&sizes.allocator);
  if (isolated != nullptr && isolated->retention < settings.damage_retentions.front()) {
    return refused(absl::StrCat("its retention, ", isolated->retention,
                                ", must be at least the first of damage_retentions, ",
                                settings.damage_retentions.front(), ","));
  }
  if (sizes.kv_types.has_value()) return absl::OkStatus();
  if (!std::holds_alternative<DamageCurvesAllocator>(sizes.allocator)) {
    return refused("must be damage_curves where the plan chooses types (size_chooses_types)");
  }
  if (!settings.damage_storage) {
    return refused("needs damage_storage where the plan chooses types (size_chooses_types)");
  }
  return absl::OkStatus();
}

absl::Status CheckSizes(const CalibrationSettings& settings, int64_t context_length) {
  const SizeSettings& sizes = settings.sizes;
  if (absl::Status s = CheckRange("size_examples", sizes.examples, 0, 4096); !s.ok()) return s;
  if (sizes.examples == 0) {
    if (sizes == SizeSettings()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "size_examples is 0: must be at least 1 where other size_... fields are given");
  }
  const std::vector<int64_t>& prompts = sizes.prompt_tokens;
  if (prompts.empty() || prompts.size() > size_t{kMaxSizePrompts}) {
    return absl::InvalidArgumentError(absl::StrCat("size_prompt_tokens has ", prompts.size(),
                                                   " values: must be 1 to ", kMaxSizePrompts));
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::string field = absl::StrCat("size_prompt_tokens[", i, "]");
    if (absl::Status s = CheckRange(field.c_str(), prompts[i], 2, 1048576); !s.ok()) return s;
    if (i > 0 && prompts[i] <= prompts[i - 1]) {
      return absl::InvalidArgumentError(absl::StrCat(
          field, " is ", prompts[i], ": must be above the one before, ", prompts[i - 1]));
    }
  }
  if (settings.size_example_tokens() > context_length) {
    return absl::InvalidArgumentError(absl::StrCat(
        "size_prompt_tokens[", prompts.size() - 1, "] + window_tokens is ",
        settings.size_example_tokens(), " (", prompts.back(), " + ", settings.window_tokens,
        "): must be at most the model's context length, ", context_length));
  }
  if (absl::Status s = CheckSizePlan(settings); !s.ok()) return s;
  if (sizes.retentions.empty()) {
    return absl::InvalidArgumentError("size_retentions is empty: must be 1 to 16 values");
  }
  absl::Status status =
      CheckRetentions("size_retentions", sizes.retentions, kMaxSizeRetentions, true);
  if (!status.ok()) return status;
  const int64_t rows = RowsOf(sizes.retentions.front(), prompts.front());
  if (rows >= settings.LeastSizeRows() || rows == prompts.front()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "size_retentions[0] is ", sizes.retentions.front(), ", ", rows, " of ", prompts.front(),
      " rows: must keep at least ", settings.LeastSizeRows(), ", the ", settings.sinks,
      " sinks, the selector's window of ", SelectorWindow(settings.selector), " and one more"));
}

absl::Status CheckSelector(const CalibrationSettings& settings) {
  if (settings.selects()) {
    absl::Status status = ValidateSelector(settings.selector);
    if (status.ok()) return status;
    return absl::InvalidArgumentError(absl::StrCat("selector: ", status.message()));
  }
  if (settings.selector == SelectorSpec()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("selector is ", SelectorName(settings.selector),
                   ": must be absent where neither damage_retentions nor size_examples ask for "
                   "rows to be chosen"));
}

}  // namespace

int64_t CalibrationSettings::DamageRows(double retention) const {
  return RowsOf(retention, prefix_tokens);
}

int64_t CalibrationSettings::LeastDamageRows() const {
  return int64_t{sinks} + SelectorWindow(selector);
}

std::vector<double> CalibrationSettings::DefaultDamageRetentions() const {
  std::vector<double> retentions;
  for (const double retention : kDefaultDamageRetentions) {
    if (DamageRows(retention) >= LeastDamageRows()) retentions.push_back(retention);
  }
  return retentions;
}

std::vector<int64_t> CalibrationSettings::DefaultSizePrompts(int64_t context_length) const {
  std::vector<int64_t> prompts;
  for (int64_t i = 0, tokens = prefix_tokens; i < kDefaultSizePrompts; ++i, tokens *= 2) {
    if (tokens + window_tokens <= context_length) prompts.push_back(tokens);
  }
  return prompts;
}

std::vector<double> CalibrationSettings::DefaultSizeRetentions() const {
  std::vector<double> retentions;
  for (const double retention : kDefaultSizeRetentions) {
    const bool enough = !sizes.prompt_tokens.empty() &&
                        RowsOf(retention, sizes.prompt_tokens.front()) >= LeastSizeRows();
    if (enough || retention == 1) retentions.push_back(retention);
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
  if (absl::Status s = CheckSelector(*this); !s.ok()) return s;
  if (absl::Status s = CheckDamage(*this); !s.ok()) return s;
  if (example_tokens() > context_length) {
    return absl::InvalidArgumentError(absl::StrCat(
        "prefix_tokens + window_tokens is ", example_tokens(), " (", prefix_tokens, " + ",
        window_tokens, "): must be at most the model's context length, ", context_length));
  }
  return CheckSizes(*this, context_length);
}

}  // namespace ripplekv
