#include "calibration/policy/size_curve.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace ripplekv {
namespace {

double RetentionOf(const std::vector<double>& retentions, std::vector<double> kl, double nats) {
  for (size_t i = kl.size() - 1; i > 0; --i) kl[i - 1] = std::max(kl[i - 1], kl[i]);
  if (nats >= kl.front()) return retentions.front();
  if (retentions.back() == 1 && nats < kl.back()) return 1;
  // kl[i - 1] > nats >= kl[i]; behind the last measured one is (1, 0).
  size_t i = 1;
  while (i < kl.size() && kl[i] > nats) ++i;
  const double x1 = retentions[i - 1], y1 = kl[i - 1];
  const double x2 = i < kl.size() ? retentions[i] : 1.0, y2 = i < kl.size() ? kl[i] : 0.0;
  if (y2 > 0) return x1 * std::pow(x2 / x1, std::log(y1 / nats) / std::log(y1 / y2));
  return x1 + (x2 - x1) * (y1 - nats) / y1;
}

}  // namespace

absl::Status ValidateSizeCurve(const SizeCurve& curve) {
  if (curve.empty()) return absl::OkStatus();
  double before = 0;
  for (double retention : curve.retentions) {
    if (!(retention > before && retention <= 1)) {
      return absl::InvalidArgumentError(absl::StrCat("size_curve has the retention ", retention,
                                                     " after ", before,
                                                     ": must ascend, each above 0 to 1"));
    }
    before = retention;
  }
  int64_t shorter = 0;
  for (int64_t tokens : curve.prompt_tokens) {
    if (tokens <= shorter) {
      return absl::InvalidArgumentError(absl::StrCat("size_curve has the prompt length ", tokens,
                                                     " after ", shorter,
                                                     ": must ascend, each at least 1"));
    }
    shorter = tokens;
  }
  if (curve.retentions.empty() || curve.mean_kl.size() != curve.prompt_tokens.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "size_curve has ", curve.mean_kl.size(), " rows for ", curve.prompt_tokens.size(),
        " prompt lengths and ", curve.retentions.size(), " retentions: must have one for each"));
  }
  for (const std::vector<double>& row : curve.mean_kl) {
    if (row.size() != curve.retentions.size()) {
      return absl::InvalidArgumentError(absl::StrCat("size_curve has a row of ", row.size(),
                                                     " values for ", curve.retentions.size(),
                                                     " retentions: must have one for each"));
    }
    for (double kl : row) {
      if (kl >= 0 && std::isfinite(kl)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("size_curve has a mean KL of ", kl, ": must be finite and at least 0"));
    }
  }
  return absl::OkStatus();
}

double RetentionForMeanKl(const SizeCurve& curve, double nats, int64_t tokens) {
  const auto retention = [&](size_t length) {
    return RetentionOf(curve.retentions, curve.mean_kl[length], nats);
  };
  const std::vector<int64_t>& lengths = curve.prompt_tokens;
  if (tokens <= lengths.front()) return retention(0);
  if (tokens >= lengths.back()) return retention(lengths.size() - 1);
  const auto next = std::upper_bound(lengths.begin(), lengths.end(), tokens);
  const auto right = static_cast<size_t>(next - lengths.begin());
  const double log_left = std::log(static_cast<double>(lengths[right - 1]));
  const double t = (std::log(static_cast<double>(tokens)) - log_left) /
                   (std::log(static_cast<double>(lengths[right])) - log_left);
  return retention(right - 1) * std::pow(retention(right) / retention(right - 1), t);
}

}  // namespace ripplekv
