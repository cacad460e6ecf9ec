#include "calibration/policy/allocator.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "calibration/policy/budgets.h"

namespace ripplekv {
namespace {

constexpr double kMaxRatio = 1e6;
constexpr double kLeastSqrtShare = 1e-6;

absl::Status CheckRatio(absl::string_view allocator, const char* field, double value) {
  if (value >= 1.0 && value <= kMaxRatio) return absl::OkStatus();  // false for NaN
  return absl::InvalidArgumentError(
      absl::StrCat(allocator, ".", field, " is ", value, ": must be between 1 and 1000000"));
}

// The ripple's parameters of the allocators that have them.
const RippleAllocator* RippleOf(const Allocator& allocator) {
  return std::visit(
      [](const auto& a) -> const RippleAllocator* {
        if constexpr (requires { a.ripple; }) {
          return &a.ripple;
        } else if constexpr (requires { a.gamma; }) {
          return &a;
        } else {
          return nullptr;
        }
      },
      allocator);
}

absl::Status ValidateRipple(const std::string& prefix, const RippleAllocator& ripple) {
  if (absl::Status status = CheckRatio(prefix, "r", ripple.r); !status.ok()) return status;
  if (absl::Status status = CheckRatio(prefix, "gamma", ripple.gamma); !status.ok()) return status;
  if (ripple.map <= SignalMap::kRank) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(prefix, ".map is ", static_cast<int>(ripple.map),
                                                 ": must be minmax, log or rank"));
}

// In place: to [0, 1]; all 0 where they are alike.
void ScaleToUnit(std::vector<double>& values) {
  const auto [min, max] = std::minmax_element(values.begin(), values.end());
  const double lowest = *min;
  const double spread = *max - lowest;
  for (double& value : values) value = spread > 0 ? (value - lowest) / spread : 0.0;
}

std::vector<double> Logarithms(absl::Span<const double> signal) {
  double least = std::numeric_limits<double>::infinity();
  for (double s : signal) {
    if (s > 0) least = std::min(least, s);
  }
  std::vector<double> logarithms(signal.size(), 0.0);
  if (std::isinf(least)) return logarithms;  // zeros only
  for (size_t l = 0; l < signal.size(); ++l) logarithms[l] = std::log(std::max(signal[l], least));
  return logarithms;
}

// Twice the mean rank: whole numbers.
std::vector<double> Ranks(absl::Span<const double> signal) {
  std::vector<double> sorted(signal.begin(), signal.end());
  std::sort(sorted.begin(), sorted.end());
  std::vector<double> ranks;
  ranks.reserve(signal.size());
  for (double s : signal) {
    const auto [first, last] = std::equal_range(sorted.begin(), sorted.end(), s);
    ranks.push_back(static_cast<double>((first - sorted.begin()) + (last - sorted.begin()) - 1));
  }
  return ranks;
}

std::vector<double> Mapped(SignalMap map, absl::Span<const double> signal) {
  std::vector<double> mapped(signal.begin(), signal.end());
  if (map == SignalMap::kRank) {
    mapped = Ranks(signal);
    const bool constant =
        std::adjacent_find(mapped.begin(), mapped.end(), std::not_equal_to<>()) == mapped.end();
    for (double& m : mapped) {
      m = constant ? 0.0 : m / (2.0 * static_cast<double>(signal.size() - 1));
    }
    return mapped;
  }
  if (map == SignalMap::kLog) mapped = Logarithms(signal);
  ScaleToUnit(mapped);
  return mapped;
}

std::vector<double> ToMeanOne(std::vector<double> multipliers) {
  double sum = 0;
  for (double w : multipliers) sum += w;
  const double mean = sum / static_cast<double>(multipliers.size());
  for (double& w : multipliers) w /= mean;
  return multipliers;
}

std::vector<double> RippleMultipliers(const RippleAllocator& ripple, std::vector<double> mapped) {
  for (double& m : mapped) {
    m = std::clamp(std::pow(ripple.r, m), 1.0 / ripple.gamma, ripple.gamma);
  }
  return ToMeanOne(std::move(mapped));
}

std::vector<double> InverseMultipliers(const RippleAllocator& ripple,
                                       absl::Span<const double> signal) {
  std::vector<double> mapped = Mapped(ripple.map, signal);
  const double most = *std::max_element(mapped.begin(), mapped.end());
  for (double& m : mapped) m = most > 0 ? 1.0 - m : 0.0;
  return RippleMultipliers(ripple, std::move(mapped));
}

std::vector<double> SqrtMultipliers(absl::Span<const double> signal) {
  const double largest = std::sqrt(*std::max_element(signal.begin(), signal.end()));
  std::vector<double> multipliers;
  multipliers.reserve(signal.size());
  for (double s : signal) {
    multipliers.push_back(largest > 0 ? std::max(std::sqrt(s) / largest, kLeastSqrtShare) : 1.0);
  }
  return ToMeanOne(std::move(multipliers));
}

// Vigna's SplitMix64 (public domain).
uint64_t NextSplitMix64(uint64_t& state) {
  uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

std::vector<double> Shuffled(absl::Span<const double> signal, uint64_t seed) {
  std::vector<double> shuffled(signal.begin(), signal.end());
  for (size_t l = shuffled.size() - 1; l > 0; --l) {
    std::swap(shuffled[l], shuffled[NextSplitMix64(seed) % (l + 1)]);
  }
  return shuffled;
}

const char* SignalName(const Allocator& allocator) {
  switch (NeededMeasurement(allocator)) {
    case Measurement::kLocalResponse:
      return "local_response";
    case Measurement::kDamage:
      return "damage";
    case Measurement::kNone:
    case Measurement::kSensitivity:
      break;
  }
  return "sensitivity";
}

}  // namespace

std::string AllocatorName(const Allocator& allocator) {
  static constexpr const char* kNames[] = {"ripple",         "uniform",         "sqrt",
                                           "inverse_ripple", "shuffled_ripple", "isolated_damage",
                                           "local_response", "pyramid",         "multipliers",
                                           "positions",      "damage_curves"};
  static_assert(std::size(kNames) == std::variant_size_v<Allocator>);
  return kNames[allocator.index()];
}

std::string SignalMapName(SignalMap map) {
  switch (map) {
    case SignalMap::kMinMax:
      return "minmax";
    case SignalMap::kLog:
      return "log";
    case SignalMap::kRank:
      break;
  }
  return "rank";
}

absl::Status ValidateAllocator(const Allocator& allocator) {
  const std::string name = AllocatorName(allocator);
  if (const RippleAllocator* ripple = RippleOf(allocator)) {
    const bool nested = !std::holds_alternative<RippleAllocator>(allocator);
    absl::Status status = ValidateRipple(nested ? absl::StrCat(name, ".ripple") : name, *ripple);
    if (!status.ok()) return status;
  }
  if (const auto* isolated = std::get_if<IsolatedDamageAllocator>(&allocator)) {
    if (!(isolated->retention > 0 && isolated->retention < 1)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "isolated_damage.retention is ", isolated->retention, ": must be above 0 and below 1"));
    }
  }
  if (const auto* curves = std::get_if<DamageCurvesAllocator>(&allocator)) {
    if (!(curves->least_share >= 0 && curves->least_share <= 1)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "damage_curves.least_share is ", curves->least_share, ": must be between 0 and 1"));
    }
  }
  if (const auto* pyramid = std::get_if<PyramidAllocator>(&allocator)) {
    return CheckRatio(name, "beta", pyramid->beta);
  }
  if (const auto* list = std::get_if<MultipliersAllocator>(&allocator)) {
    return ValidateMultipliers(list->multipliers);
  }
  if (const auto* list = std::get_if<PositionsAllocator>(&allocator)) {
    if (list->positions.empty() || list->positions.size() > size_t{kMaxLayers}) {
      return absl::InvalidArgumentError(absl::StrCat("positions has ", list->positions.size(),
                                                     " values: must have 1 to ", kMaxLayers));
    }
    for (size_t l = 0; l < list->positions.size(); ++l) {
      if (list->positions[l] < 1 || list->positions[l] > kMaxPromptTokens) {
        return absl::InvalidArgumentError(absl::StrCat("positions[", l, "] is ", list->positions[l],
                                                       ": must be between 1 and ",
                                                       kMaxPromptTokens));
      }
    }
  }
  return absl::OkStatus();
}

Measurement NeededMeasurement(const Allocator& allocator) {
  if (std::holds_alternative<LocalResponseAllocator>(allocator)) return Measurement::kLocalResponse;
  if (std::holds_alternative<IsolatedDamageAllocator>(allocator) ||
      std::holds_alternative<DamageCurvesAllocator>(allocator)) {
    return Measurement::kDamage;
  }
  const bool sensitivity =
      RippleOf(allocator) != nullptr || std::holds_alternative<SqrtAllocator>(allocator);
  return sensitivity ? Measurement::kSensitivity : Measurement::kNone;
}

bool HasMultipliers(const Allocator& allocator) {
  return !std::holds_alternative<PyramidAllocator>(allocator) &&
         !std::holds_alternative<PositionsAllocator>(allocator) &&
         !std::holds_alternative<DamageCurvesAllocator>(allocator);
}

absl::StatusOr<std::vector<double>> Multipliers(const Allocator& allocator,
                                                absl::Span<const double> signal, int layers) {
  if (layers < 1 || layers > kMaxLayers) {
    return absl::InvalidArgumentError(
        absl::StrCat("layers is ", layers, ": must be between 1 and ", kMaxLayers));
  }
  if (absl::Status status = ValidateAllocator(allocator); !status.ok()) return status;
  if (!HasMultipliers(allocator)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ", AllocatorName(allocator), " allocator has no multipliers"));
  }
  const char* name = SignalName(allocator);
  const bool needed = NeededMeasurement(allocator) != Measurement::kNone;
  if (signal.empty() ? needed : signal.size() != size_t(layers)) {
    return absl::InvalidArgumentError(absl::StrCat(name, " has ", signal.size(),
                                                   " values: must have one for each of the ",
                                                   layers, " layers"));
  }
  for (size_t l = 0; l < signal.size(); ++l) {
    if (!std::isfinite(signal[l]) || signal[l] < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, "[", l, "] is ", signal[l], ": must be finite and at least 0"));
    }
  }
  if (std::holds_alternative<UniformAllocator>(allocator)) {
    return std::vector<double>(layers, 1.0);
  }
  if (const auto* list = std::get_if<MultipliersAllocator>(&allocator)) {
    if (list->multipliers.size() != size_t(layers)) {
      return absl::InvalidArgumentError(absl::StrCat("multipliers has ", list->multipliers.size(),
                                                     " values: must have one for each of the ",
                                                     layers, " layers"));
    }
    // Below 1 first: the sum of the largest doubles is not one.
    std::vector<double> scaled = list->multipliers;
    const double largest = *std::max_element(scaled.begin(), scaled.end());
    for (double& w : scaled) w /= largest;
    return ToMeanOne(std::move(scaled));
  }
  if (std::holds_alternative<SqrtAllocator>(allocator)) return SqrtMultipliers(signal);
  const RippleAllocator& ripple = *RippleOf(allocator);
  if (std::holds_alternative<InverseRippleAllocator>(allocator)) {
    return InverseMultipliers(ripple, signal);
  }
  if (const auto* shuffled = std::get_if<ShuffledRippleAllocator>(&allocator)) {
    return RippleMultipliers(ripple, Mapped(ripple.map, Shuffled(signal, shuffled->seed)));
  }
  return RippleMultipliers(ripple, Mapped(ripple.map, signal));
}

}  // namespace ripplekv
