#pragma once

#include <cstdint>
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

// Means and standard errors of tables, one an example.
struct TableStatistics {
  std::vector<std::vector<double>> mean;            // [rows][columns]
  std::vector<std::vector<double>> standard_error;  // the same; empty for fewer than 2 tables
};

// tables: [examples][rows][columns], equal shapes.
TableStatistics SummariseTables(const std::vector<std::vector<std::vector<double>>>& tables);

// Spearman's correlation of two rankings of the layers, each the mean over examples, and the
// interval that holds it in 95 % of kBootstrapRounds resamples of the examples.
struct RankCorrelation {
  double spearman = 0;
  double low = 0;
  double high = 0;

  bool operator==(const RankCorrelation&) const = default;
};

inline constexpr int kBootstrapRounds = 2000;
inline constexpr uint64_t kBootstrapSeed = 20260808;

// a and b: [examples][layers]; their examples are resampled independently or, where `paired` (the
// same examples, as many of each), together. One example stands for a ranking without error.
//
// A round draws for a its number of examples with replacement, then for b, each from a
// std::mt19937_64 seeded with kBootstrapSeed: index = (its upper 32 bits * examples) / 2^32. Rounds
// whose correlation is not defined are left out. The interval's ends are the 2.5 and 97.5 %
// quantiles, linear between order statistics. Unset where the correlation of the means is not
// defined.
std::optional<RankCorrelation> CorrelateRanks(const std::vector<std::vector<double>>& a,
                                              const std::vector<std::vector<double>>& b,
                                              bool paired);

}  // namespace ripplekv
