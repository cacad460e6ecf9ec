#include "calibration/policy/budgets.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "calibration/policy/allocator.h"

namespace ripplekv {
namespace {

// Products of a budget (< 2^43) and a sum of weights (< 2^74), summed over 2^12 layers, stay below
// 2^127.
__extension__ typedef __int128 Int128;

constexpr double kPositionTolerance = 1e-6;
constexpr double kMaxMultiplierRatio = 1e12;
constexpr int kWeightBits = 62;

// floor(fraction * tokens), where a product that misses a whole number only by rounding counts as
// that number: 0.29 * 100 is 28.999999999999996 in binary.
int64_t FloorOfFraction(double fraction, int64_t tokens) {
  const double product = fraction * static_cast<double>(tokens) + kPositionTolerance;
  return std::min(static_cast<int64_t>(product), tokens);
}

absl::StatusOr<int64_t> RequestedPositions(const BudgetRequest& request, int64_t layers) {
  const int64_t tokens = request.prompt_tokens;
  if (const auto* retention = std::get_if<Retention>(&request.size)) {
    return layers * FloorOfFraction(retention->fraction, tokens);
  }
  if (const auto* total = std::get_if<TotalPositions>(&request.size)) return total->positions;
  if (std::holds_alternative<Full>(request.size)) return layers * tokens;
  if (const auto* total = std::get_if<TotalBytes>(&request.size)) {
    if (request.row_bytes > 0) return total->bytes / request.row_bytes;
    return absl::FailedPreconditionError(
        "total_bytes needs the bytes of a cached row, and this plan is not of the loaded model: "
        "give retention or total_positions");
  }
  return absl::FailedPreconditionError(
      "target_mean_kl needs a measured size curve: give retention, total_positions or total_bytes");
}

absl::Status CheckRange(const char* field, int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ": must be between ", min, " and ", max));
}

// The multipliers as integers of the same ratios: scaled by one power of two to below 2^62.
std::vector<int64_t> IntegerWeights(absl::Span<const double> multipliers) {
  int exponent = 0;
  std::frexp(*std::max_element(multipliers.begin(), multipliers.end()), &exponent);
  std::vector<int64_t> weights;
  weights.reserve(multipliers.size());
  for (double w : multipliers) {
    weights.push_back(static_cast<int64_t>(std::ldexp(w, kWeightBits - exponent)));
  }
  return weights;
}

// x_l = clamp(lambda * w_l, floor, cap) with sum B, then largest remainder. Each pass shares what
// is left over the free layers in proportion, sees whether the floors or the caps are violated by
// more in total, and fixes the layers on that side (Bitran and Hax, 1981): those are at their bound
// in the solution, whatever the other side does.
std::vector<int64_t> WaterFill(int64_t total, int64_t floor, int64_t cap,
                               const std::vector<int64_t>& weights) {
  std::vector<int64_t> shares(weights.size());
  std::vector<size_t> free(weights.size());
  std::iota(free.begin(), free.end(), size_t{0});
  int64_t left = total;
  while (!free.empty()) {
    Int128 sum = 0;
    for (size_t l : free) sum += weights[l];
    Int128 below = 0;  // how much the floors add and the caps take, times `sum`
    Int128 above = 0;
    for (size_t l : free) {
      const Int128 share = Int128{left} * weights[l];
      below += std::max(floor * sum - share, Int128{0});
      above += std::max(share - cap * sum, Int128{0});
    }
    if (below == 0 && above == 0) break;
    const bool fix_floors = below >= above;
    const bool fix_caps = above >= below;
    std::vector<size_t> still_free;
    int64_t fixed = 0;
    for (size_t l : free) {
      const Int128 share = Int128{left} * weights[l];
      if (fix_floors && share <= floor * sum) {
        shares[l] = floor;
      } else if (fix_caps && share >= cap * sum) {
        shares[l] = cap;
      } else {
        still_free.push_back(l);
        continue;
      }
      fixed += shares[l];
    }
    left -= fixed;
    free = std::move(still_free);
  }
  if (free.empty()) return shares;

  Int128 sum = 0;
  for (size_t l : free) sum += weights[l];
  std::vector<std::pair<Int128, size_t>> remainders;  // negated, so that sorting puts the largest
  remainders.reserve(free.size());                    // first and equal ones by layer
  int64_t unplaced = left;
  for (size_t l : free) {
    const Int128 share = Int128{left} * weights[l];
    shares[l] = static_cast<int64_t>(share / sum);
    unplaced -= shares[l];
    remainders.emplace_back(-(share % sum), l);
  }
  // Fewer than there are fractional parts, so that no layer passes the cap by rounding up.
  std::sort(remainders.begin(), remainders.end());
  for (int64_t i = 0; i < unplaced; ++i) ++shares[remainders[i].second];
  return shares;
}

}  // namespace

absl::Status ValidateMultipliers(absl::Span<const double> multipliers) {
  if (multipliers.empty() || multipliers.size() > size_t{kMaxLayers}) {
    return absl::InvalidArgumentError(absl::StrCat("multipliers has ", multipliers.size(),
                                                   " values: must have 1 to ", kMaxLayers));
  }
  const double max = *std::max_element(multipliers.begin(), multipliers.end());
  for (size_t l = 0; l < multipliers.size(); ++l) {
    const double w = multipliers[l];
    if (!(w > 0) || !std::isfinite(w) || w < max / kMaxMultiplierRatio) {
      return absl::InvalidArgumentError(absl::StrCat(
          "multipliers[", l, "] is ", w,
          ": must be finite, positive and at least 1e-12 times the largest (", max, ")"));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateSize(const Size& size) {
  if (const auto* retention = std::get_if<Retention>(&size)) {
    if (!(retention->fraction > 0 && retention->fraction <= 1)) {
      return absl::InvalidArgumentError(
          absl::StrCat("retention is ", retention->fraction, ": must be above 0 and at most 1"));
    }
  } else if (const auto* total = std::get_if<TotalPositions>(&size)) {
    if (total->positions < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("total_positions is ", total->positions, ": must be at least 1"));
    }
  } else if (const auto* total = std::get_if<TotalBytes>(&size)) {
    if (total->bytes < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("total_bytes is ", total->bytes, ": must be at least 1"));
    }
  } else if (const auto* target = std::get_if<TargetMeanKl>(&size)) {
    if (!(target->nats > 0) || !std::isfinite(target->nats)) {
      return absl::InvalidArgumentError(
          absl::StrCat("target_mean_kl is ", target->nats, ": must be above 0 and finite"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<LayerBudgets> TotalBudget(const BudgetRequest& request, int64_t layers) {
  const int64_t tokens = request.prompt_tokens;
  absl::Status status = CheckRange("prompt_tokens", tokens, 1, kMaxPromptTokens);
  status.Update(ValidateSize(request.size));
  status.Update(CheckRange("min_positions", request.min_positions, 0, kMaxPromptTokens));
  status.Update(CheckRange("floor", request.floor, 1, kMaxPromptTokens));
  if (!status.ok()) return status;
  const absl::StatusOr<int64_t> requested = RequestedPositions(request, layers);
  if (!requested.ok()) return requested.status();

  const int64_t floor = std::min(request.floor, tokens);
  LayerBudgets budgets;
  budgets.requested = *requested;
  const int64_t raised =
      std::max(budgets.requested, layers * std::min(request.min_positions, tokens));
  budgets.total = std::clamp(raised, layers * floor, layers * tokens);
  budgets.raised = raised != budgets.requested;
  budgets.clamped = budgets.total != raised;
  budgets.full = budgets.total == layers * tokens;
  return budgets;
}

std::vector<int64_t> ShareInProportion(int64_t total, int64_t floor, int64_t cap,
                                       absl::Span<const double> multipliers) {
  return WaterFill(total, floor, cap, IntegerWeights(multipliers));
}

absl::StatusOr<LayerBudgets> ShareBudget(const BudgetRequest& request,
                                         absl::Span<const double> multipliers) {
  absl::StatusOr<LayerBudgets> budgets =
      TotalBudget(request, static_cast<int64_t>(multipliers.size()));
  if (!budgets.ok()) return budgets.status();
  if (absl::Status status = ValidateMultipliers(multipliers); !status.ok()) return status;
  const int64_t tokens = request.prompt_tokens;
  budgets->layer =
      ShareInProportion(budgets->total, std::min(request.floor, tokens), tokens, multipliers);
  return budgets;
}

}  // namespace ripplekv
