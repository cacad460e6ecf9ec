#pragma once

#include <optional>
#include <vector>

#include "absl/types/span.h"

namespace ripplekv {

// All sums run in index order, so that equal inputs give equal bits.

// 0 for no values.
double Mean(absl::Span<const double> values);

// Standard error of the mean: sample standard deviation (n - 1) / sqrt(n). Unset for n < 2.
std::optional<double> StandardError(absl::Span<const double> values);

// Ranks from 1, equal values sharing the average of their ranks.
std::vector<double> AverageRanks(absl::Span<const double> values);

// Spearman's rank correlation: Pearson's of the average ranks. Unset for fewer than 2 values,
// unequal lengths or when either side is constant.
std::optional<double> Spearman(absl::Span<const double> a, absl::Span<const double> b);

// What a profile says about its layers, from each example's value of each layer.
struct SensitivityStatistics {
  std::vector<double> mean;            // [layers]
  std::vector<double> standard_error;  // [layers]; empty for fewer than 2 examples
  // Spearman between the layer means of the even and of the odd examples. Unset for fewer than 4
  // examples or constant means.
  std::optional<double> split_half_spearman;
};

// values: [examples][layers], at least one example, equal lengths (else everything is empty).
SensitivityStatistics SummariseSensitivity(const std::vector<std::vector<double>>& values);

}  // namespace ripplekv
