#pragma once

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "calibration/policy/damage_table.h"

namespace ripplekv {

// INVALID_ARGUMENT where the table is not what damage_table.h says for so many layers: retentions
// ascending in (0, 1), damage finite and at least 0, one row a layer.
absl::Status ValidateDamageTable(const DamageTable& table, int layers);

// One layer's damage D by the share x of its rows that is kept, from what was measured and (1, 0).
//
// Measured points are noisy and need not fall. Kept are those of their lower convex hull: a point
// above it is taken for noise upwards, so that the curve errs towards less damage, never towards
// spending rows where they were measured not to help. Between the kept points ln D is linear in x,
// which bends as measured curves do and makes neighbouring budgets differ in their marginal damage,
// where a straight line would not; D itself is linear where one end is 0, as in the last interval.
// Below the smallest measured share the first interval's law goes on.
class DamageCurve {
 public:
  // `shares` ascending in (0, 1); `damage` one a share, finite, at least 0.
  DamageCurve(absl::Span<const double> shares, absl::Span<const double> damage);

  // share in [0, 1]. Falls from share to share, or stays; finite; 0 at 1.
  double At(double share) const;

  // The kept points, ascending in x; the last is (1, 0).
  const std::vector<std::pair<double, double>>& points() const { return points_; }

 private:
  std::vector<std::pair<double, double>> points_;
};

// D_l of each layer at a retention: linear between the measured ones and (1, 0), as measured (no
// hull). FAILED_PRECONDITION where the table has no damage of kept rows, or none as low as the
// retention, with the way out.
absl::StatusOr<std::vector<double>> DamageAt(const DamageTable& table, double retention);

}  // namespace ripplekv
