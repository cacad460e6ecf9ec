#include "calibration/policy/damage_curve.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "calibration/policy/convex_hull.h"

namespace ripplekv {
namespace {

// More than any mean KL, and such that differences and slopes of it stay finite.
constexpr double kMostDamage = 1e200;

absl::Status CheckDamage(const char* name, const std::vector<std::vector<double>>& damage,
                         size_t layers, size_t columns) {
  if (damage.size() != layers) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " has ", damage.size(), " layers: must have ", layers));
  }
  for (size_t l = 0; l < layers; ++l) {
    if (damage[l].size() != columns) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, "[", l, "] has ", damage[l].size(), " values: must have ", columns));
    }
    for (size_t i = 0; i < columns; ++i) {
      if (!(damage[l][i] >= 0 && damage[l][i] <= kMostDamage)) {
        return absl::InvalidArgumentError(absl::StrCat(name, "[", l, "][", i, "] is ", damage[l][i],
                                                       ": must be finite and at least 0"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateDamageTable(const DamageTable& table, int layers) {
  if (table.empty()) return absl::OkStatus();
  double before = 0;
  for (size_t i = 0; i < table.retentions.size(); ++i) {
    const double retention = table.retentions[i];
    if (!(retention > before && retention < 1)) {
      return absl::InvalidArgumentError(absl::StrCat("damage.retentions[", i, "] is ", retention,
                                                     ": must be above ", before, " and below 1"));
    }
    before = retention;
  }
  absl::Status status;
  const auto n = static_cast<size_t>(layers);
  if (!table.rows.empty()) {
    status.Update(CheckDamage("damage.rows", table.rows, n, table.retentions.size()));
  }
  if (!table.storage.empty()) {
    status.Update(CheckDamage("damage.storage", table.storage, n, table.types.size()));
  }
  return status;
}

DamageCurve::DamageCurve(absl::Span<const double> shares, absl::Span<const double> damage) {
  std::vector<std::pair<double, double>> measured;
  for (size_t i = 0; i < shares.size(); ++i) measured.emplace_back(shares[i], damage[i]);
  measured.emplace_back(1.0, 0.0);
  for (size_t i : LowerHull(
           measured.size(), [&](size_t p) { return measured[p].first; },
           [&](size_t p) { return measured[p].second; })) {
    points_.push_back(measured[i]);
  }
}

double DamageCurve::At(double share) const {
  if (points_.size() < 2 || share >= 1) return 0;  // nothing was measured: nothing is known to cost
  size_t right = 1;
  while (right + 1 < points_.size() && points_[right].first <= share) ++right;
  const auto& [x1, y1] = points_[right - 1];
  const auto& [x2, y2] = points_[right];
  const double t = (share - x1) / (x2 - x1);
  if (y2 > 0) return std::min(y1 * std::pow(y2 / y1, t), kMostDamage);
  return std::min(y1 + (y2 - y1) * t, kMostDamage);
}

absl::StatusOr<std::vector<double>> DamageAt(const DamageTable& table, double retention) {
  if (table.rows.empty() || table.retentions.empty()) {
    return absl::FailedPreconditionError(
        "isolated_damage needs what compressing each layer alone costs and the profile has none: "
        "calibrate with --calibration-damage (damage_examples), or use another allocator");
  }
  if (retention < table.retentions.front()) {
    return absl::FailedPreconditionError(
        absl::StrCat("isolated_damage.retention is ", retention,
                     " and the smallest that the profile measured is ", table.retentions.front(),
                     ": ask for that or more, or calibrate with it"));
  }
  const auto next = std::upper_bound(table.retentions.begin(), table.retentions.end(), retention);
  const auto right = static_cast<size_t>(next - table.retentions.begin());
  const double x1 = table.retentions[right - 1];
  const bool last = right == table.retentions.size();
  const double t = (retention - x1) / ((last ? 1.0 : table.retentions[right]) - x1);
  std::vector<double> damage;
  for (const std::vector<double>& layer : table.rows) {
    const double y2 = last ? 0.0 : layer[right];
    damage.push_back(layer[right - 1] + (y2 - layer[right - 1]) * t);
  }
  return damage;
}

}  // namespace ripplekv
