#include "calibration/policy/allocator.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace ripplekv {
namespace {

constexpr double kMaxRatio = 1e6;

absl::Status CheckRatio(const char* field, double value) {
  if (value >= 1.0 && value <= kMaxRatio) return absl::OkStatus();  // false for NaN
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ": must be between 1 and 1000000"));
}

std::vector<double> RippleMultipliers(const RippleAllocator& ripple,
                                      absl::Span<const double> sensitivity) {
  const auto [min, max] = std::minmax_element(sensitivity.begin(), sensitivity.end());
  const double lowest = *min;
  const double spread = *max - lowest;
  std::vector<double> multipliers;
  multipliers.reserve(sensitivity.size());
  double sum = 0;
  for (double s : sensitivity) {
    const double normalised = spread > 0 ? (s - lowest) / spread : 0.0;
    const double w = std::clamp(std::pow(ripple.r, normalised), 1.0 / ripple.gamma, ripple.gamma);
    multipliers.push_back(w);
    sum += w;
  }
  const double mean = sum / static_cast<double>(multipliers.size());
  for (double& w : multipliers) w /= mean;
  return multipliers;
}

}  // namespace

std::string AllocatorName(const Allocator& allocator) {
  return std::holds_alternative<RippleAllocator>(allocator) ? "ripple" : "uniform";
}

absl::Status ValidateAllocator(const Allocator& allocator) {
  const auto* ripple = std::get_if<RippleAllocator>(&allocator);
  if (ripple == nullptr) return absl::OkStatus();
  if (absl::Status status = CheckRatio("ripple.r", ripple->r); !status.ok()) return status;
  return CheckRatio("ripple.gamma", ripple->gamma);
}

bool NeedsSensitivity(const Allocator& allocator) {
  return std::holds_alternative<RippleAllocator>(allocator);
}

absl::StatusOr<std::vector<double>> Multipliers(const Allocator& allocator,
                                                absl::Span<const double> sensitivity, int layers) {
  if (layers < 1 || layers > kMaxLayers) {
    return absl::InvalidArgumentError(
        absl::StrCat("layers is ", layers, ": must be between 1 and ", kMaxLayers));
  }
  if (absl::Status status = ValidateAllocator(allocator); !status.ok()) return status;
  if (sensitivity.empty() ? NeedsSensitivity(allocator) : sensitivity.size() != size_t(layers)) {
    return absl::InvalidArgumentError(absl::StrCat("sensitivity has ", sensitivity.size(),
                                                   " values: must have one for each of the ",
                                                   layers, " layers"));
  }
  for (size_t l = 0; l < sensitivity.size(); ++l) {
    if (!std::isfinite(sensitivity[l]) || sensitivity[l] < 0) {
      return absl::InvalidArgumentError(absl::StrCat("sensitivity[", l, "] is ", sensitivity[l],
                                                     ": must be finite and at least 0"));
    }
  }
  if (const auto* ripple = std::get_if<RippleAllocator>(&allocator)) {
    return RippleMultipliers(*ripple, sensitivity);
  }
  return std::vector<double>(layers, 1.0);
}

}  // namespace ripplekv
