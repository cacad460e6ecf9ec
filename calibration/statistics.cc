#include "calibration/statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <random>
#include <utility>

namespace ripplekv {
namespace {

// Layer means over the examples first, first + step, ...
std::vector<double> LayerMeans(const std::vector<std::vector<double>>& values, size_t first,
                               size_t step) {
  std::vector<double> means(values[0].size());
  std::vector<double> column;
  for (size_t l = 0; l < means.size(); ++l) {
    column.clear();
    for (size_t i = first; i < values.size(); i += step) column.push_back(values[i][l]);
    means[l] = Mean(column);
  }
  return means;
}

// Layer means over drawn examples.
std::vector<double> LayerMeans(const std::vector<std::vector<double>>& values,
                               const std::vector<size_t>& drawn) {
  std::vector<double> means(values[0].size());
  for (const size_t example : drawn) {
    for (size_t l = 0; l < means.size(); ++l) means[l] += values[example][l];
  }
  for (double& mean : means) mean /= static_cast<double>(drawn.size());
  return means;
}

// Linear between order statistics: of n sorted values, value share * (n - 1).
double Quantile(const std::vector<double>& sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

double Mean(absl::Span<const double> values) {
  if (values.empty()) return 0.0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::optional<double> StandardError(absl::Span<const double> values) {
  if (values.size() < 2) return std::nullopt;
  const double mean = Mean(values);
  double squares = 0;
  for (double value : values) squares += (value - mean) * (value - mean);
  const auto n = static_cast<double>(values.size());
  return std::sqrt(squares / (n - 1) / n);
}

std::vector<double> AverageRanks(absl::Span<const double> values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin + 1;
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    const double rank = static_cast<double>(begin + 1 + end) / 2;  // mean of begin + 1 ... end
    for (size_t i = begin; i < end; ++i) ranks[order[i]] = rank;
    begin = end;
  }
  return ranks;
}

std::optional<double> Spearman(absl::Span<const double> a, absl::Span<const double> b) {
  if (a.size() != b.size() || a.size() < 2) return std::nullopt;
  const std::vector<double> ranks_a = AverageRanks(a);
  const std::vector<double> ranks_b = AverageRanks(b);
  const double mean = static_cast<double>(a.size() + 1) / 2;  // of any set of average ranks
  double product = 0, squares_a = 0, squares_b = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    product += (ranks_a[i] - mean) * (ranks_b[i] - mean);
    squares_a += (ranks_a[i] - mean) * (ranks_a[i] - mean);
    squares_b += (ranks_b[i] - mean) * (ranks_b[i] - mean);
  }
  if (squares_a == 0 || squares_b == 0) return std::nullopt;
  return std::clamp(product / std::sqrt(squares_a * squares_b), -1.0, 1.0);
}

SensitivityStatistics SummariseSensitivity(const std::vector<std::vector<double>>& values) {
  SensitivityStatistics statistics;
  if (values.empty()) return statistics;
  for (const auto& example : values) {
    if (example.size() != values[0].size()) return statistics;
  }
  statistics.mean = LayerMeans(values, 0, 1);
  if (values.size() >= 2) {
    std::vector<double> column(values.size());
    for (size_t l = 0; l < values[0].size(); ++l) {
      for (size_t i = 0; i < values.size(); ++i) column[i] = values[i][l];
      statistics.standard_error.push_back(*StandardError(column));
    }
  }
  if (values.size() >= 4) {
    statistics.split_half_spearman = Spearman(LayerMeans(values, 0, 2), LayerMeans(values, 1, 2));
  }
  return statistics;
}

TableStatistics SummariseTables(const std::vector<std::vector<std::vector<double>>>& tables) {
  TableStatistics statistics;
  if (tables.empty()) return statistics;
  std::vector<double> values(tables.size());
  for (size_t r = 0; r < tables[0].size(); ++r) {
    std::vector<double> means, errors;
    for (size_t c = 0; c < tables[0][r].size(); ++c) {
      for (size_t i = 0; i < tables.size(); ++i) values[i] = tables[i][r][c];
      means.push_back(Mean(values));
      if (const auto error = StandardError(values)) errors.push_back(*error);
    }
    statistics.mean.push_back(std::move(means));
    if (tables.size() >= 2) statistics.standard_error.push_back(std::move(errors));
  }
  return statistics;
}

std::optional<RankCorrelation> CorrelateRanks(const std::vector<std::vector<double>>& a,
                                              const std::vector<std::vector<double>>& b,
                                              bool paired) {
  if (a.empty() || b.empty() || (paired && a.size() != b.size())) return std::nullopt;
  std::mt19937_64 random(kBootstrapSeed);
  const auto draw = [&random](size_t examples) {
    std::vector<size_t> drawn(examples);
    for (size_t& index : drawn) index = static_cast<size_t>((random() >> 32) * examples >> 32);
    return drawn;
  };
  const auto spearman = Spearman(LayerMeans(a, 0, 1), LayerMeans(b, 0, 1));
  if (!spearman.has_value()) return std::nullopt;
  std::vector<double> rounds;
  for (int round = 0; round < kBootstrapRounds; ++round) {
    const std::vector<size_t> of_a = draw(a.size());
    const std::vector<size_t> of_b = paired ? of_a : draw(b.size());
    const auto drawn = Spearman(LayerMeans(a, of_a), LayerMeans(b, of_b));
    if (drawn.has_value()) rounds.push_back(*drawn);
  }
  if (rounds.empty()) return std::nullopt;
  std::sort(rounds.begin(), rounds.end());
  return RankCorrelation{*spearman, Quantile(rounds, 0.025), Quantile(rounds, 0.975)};
}

}  // namespace ripplekv
